import { Link } from "@tanstack/react-router";
import { Wallet } from "lucide-react";
import { buttonClass, ErrorCard } from "@/kit";
import { studio } from "@/texts/studio";

const texts = studio.effect;

interface InsufficientTokensProps {
  /** Null if the price depends on inputs that are still missing. */
  price: number | null;
  minimum: number;
  have: number;
  topUpUrl: string | null;
}

export function InsufficientTokens({ price, minimum, have, topUpUrl }: InsufficientTokensProps) {
  const need = price ?? minimum;
  const isMinimum = price === null;
  return (
    <ErrorCard
      tone="warn"
      title={texts.tooFew(need, have, isMinimum)}
      actions={
        <>
          {topUpUrl && (
            <a
              className={buttonClass({ look: "primary", size: "small" })}
              href={topUpUrl}
              target="_blank"
              rel="noreferrer"
            >
              {texts.topUp}
            </a>
          )}
          <Link to="/wallet" className={buttonClass({ size: "small" })}>
            <Wallet aria-hidden />
            {texts.toWallet}
          </Link>
        </>
      }
    >
      {texts.missing(need - have, isMinimum)} {topUpUrl ? texts.topUpText : texts.askAdministrator}
    </ErrorCard>
  );
}
