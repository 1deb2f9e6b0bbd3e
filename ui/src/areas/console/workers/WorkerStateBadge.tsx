import { workers as texts } from "@/texts/console-workers";
import { State } from "../shared/panels";
import { stateTone } from "./rules";

export const WorkerStateBadge = ({ state }: { state: string }) => (
  <State tone={stateTone(state)} isBreathing={state === "busy"}>
    {texts.states[state] ?? state}
  </State>
);
