import { dispatches as texts } from "@/texts/console-dispatches";
import { State } from "../shared/panels";
import { statusTone } from "./rules";

export const DispatchStatus = ({ status }: { status: string }) => (
  <State tone={statusTone(status)} isBreathing={status === "leased"}>
    {texts.statuses[status] ?? status}
  </State>
);
