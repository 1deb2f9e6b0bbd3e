import { fleets as texts } from "@/texts/console-fleets";
import type { Fleet, Scaling } from "../queries/fleets";
import { State } from "../shared/panels";
import { stateOf, TONES } from "./rules";

export const FleetStateBadge = ({ fleet, scaling: how }: { fleet: Fleet; scaling: Scaling | undefined }) => {
  const state = stateOf(fleet, how);
  return <State tone={TONES[state]}>{texts.states[state]}</State>;
};
