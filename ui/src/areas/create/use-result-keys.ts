import { useKeys } from "@/lib/keyboard";
import { create as texts } from "@/texts/create";
import { gallery as galleryTexts } from "@/texts/gallery";
import type { Direction } from "./result-list";

interface ResultKeys {
  isActive: boolean;
  hasResults: boolean;
  onMove: (direction: Direction) => void;
  /** Null if there are no values to load, as on a server. */
  onRecall: (() => void) | null;
  onStar: () => void;
  onSelect: () => void;
  onCompare: () => void;
  onUse: () => void;
  onPrompt: () => void;
  onSwitch: (isInResults: boolean) => void;
}

/** Keyboard shortcuts of the results. Escape leads from a field to the results and back. */
export function useResultKeys({ isActive, hasResults, ...on }: ResultKeys): void {
  const { keys, title: group } = texts.results;
  const { verbs } = galleryTexts;
  useKeys([
    ...(isActive && hasResults
      ? [
          { keys: "ArrowLeft", name: keys.previous, group, run: () => on.onMove("left") },
          { keys: "ArrowRight", name: keys.next, group, run: () => on.onMove("right") },
          { keys: "ArrowUp", name: keys.above, group, run: () => on.onMove("up") },
          { keys: "ArrowDown", name: keys.below, group, run: () => on.onMove("down") },
          ...(on.onRecall ? [{ keys: "r", name: verbs.recall, group, run: on.onRecall }] : []),
          { keys: "s", name: verbs.star, group, run: on.onStar },
          { keys: "x", name: verbs.select, group, run: on.onSelect },
          { keys: "v", name: verbs.compare, group, run: on.onCompare },
          { keys: "u", name: verbs.useAsInput, group, run: on.onUse },
        ]
      : []),
    ...(isActive
      ? [
          { keys: "p", name: keys.prompt, group, run: on.onPrompt },
          {
            keys: "Escape",
            name: keys.switch,
            group,
            whileTyping: true,
            run: ({ target }: KeyboardEvent) => {
              const element = target instanceof Element ? target : null;
              const isInResults = element?.closest("[data-results]") != null;
              // other fields, such as the search, handle Escape themselves
              if (isInResults || element?.closest("form, [data-plan]")) on.onSwitch(isInResults);
            },
          },
        ]
      : []),
  ]);
}
