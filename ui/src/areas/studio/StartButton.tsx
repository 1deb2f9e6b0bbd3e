import { Play } from "lucide-react";
import { Button } from "@/kit";
import { studio } from "@/texts/studio";
import styles from "./EffectPage.module.css";
import type { StudioEffect } from "./queries";
import studioStyles from "./studio.module.css";
import type { StartState } from "./use-start-effect";

const texts = studio.effect;

interface StartButtonProps {
  effect: StudioEffect;
  starting: StartState;
  isDisabled: boolean;
}

export function StartButton({ effect, starting, isDisabled }: StartButtonProps) {
  return (
    <div className={styles.start}>
      <Button
        look="primary"
        size="large"
        isWide
        icon={Play}
        isBusy={starting.isBusy || starting.isWanted}
        disabled={isDisabled}
        onClick={starting.start}
      >
        {starting.isBusy ? texts.starting : starting.isWanted ? texts.startsSoon : texts.start(effect.credits_cost)}
      </Button>
      {starting.isWanted && (
        <Button look="quiet" size="small" onClick={starting.dismiss}>
          {texts.dontStart}
        </Button>
      )}
      {effect.credits_cost > 0 && <p className={studioStyles.quiet}>{texts.refundable}</p>}
    </div>
  );
}
