import { useQueries, useQuery } from "@tanstack/react-query";
import { fleets as fleetsQuery, scaling } from "../queries/fleets";

/** Autoscaled fleets with their status. */
export function useAutoscaledFleets() {
  const { data: fleets, isError } = useQuery(fleetsQuery);
  const scaled = (fleets ?? []).filter((each) => each.machines && each.machines.provider !== "static");
  return useQueries({
    queries: scaled.map((each) => scaling(each.stage, each.slug)),
    combine: (found) => ({
      fleets: found.flatMap((each, index) => {
        const fleet = scaled[index];
        return fleet ? [{ fleet, scaling: each.data }] : [];
      }),
      isKnown: fleets !== undefined && found.every((each) => each.data !== undefined),
      isFailed: isError || found.some((each) => each.isError),
    }),
  });
}
