import { dispatches as texts } from "@/texts/console-dispatches";
import { State } from "../parts";
import { toneOf } from "./rules";

export const StatusOf = ({ status }: { status: string }) => (
  <State tone={toneOf(status)} isBreathing={status === "leased"}>
    {texts.statuses[status] ?? status}
  </State>
);
