import { Play } from "lucide-react";
import { Button } from "@/kit";
import { studio } from "@/texts/studio";
import styles from "./EffectPage.module.css";
import studioStyles from "./studio.module.css";
import type { StartState } from "./use-start-effect";

const texts = studio.effect;

interface StartButtonProps {
  /** Null if the price depends on inputs that are still missing. */
  price: number | null;
  minimum: number;
  starting: StartState;
  isDisabled: boolean;
}

export function StartButton({ price, minimum, starting, isDisabled }: StartButtonProps) {
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
        {starting.isBusy
          ? texts.starting
          : starting.isWanted
            ? texts.startsSoon
            : price === null
              ? texts.startFrom(minimum)
              : texts.start(price)}
      </Button>
      {starting.isWanted && (
        <Button look="quiet" size="small" onClick={starting.dismiss}>
          {texts.dontStart}
        </Button>
      )}
      {(price ?? 1) > 0 && <p className={studioStyles.quiet}>{texts.refundable}</p>}
    </div>
  );
}
