import { Link } from "@tanstack/react-router";
import { Wallet } from "lucide-react";
import { buttonClass, ErrorCard } from "@/kit";
import { studio } from "@/texts/studio";

const texts = studio.effect;

interface InsufficientTokensProps {
  need: number;
  have: number;
  topUpUrl: string | null;
}

export function InsufficientTokens({ need, have, topUpUrl }: InsufficientTokensProps) {
  return (
    <ErrorCard
      tone="warn"
      title={texts.tooFew(need, have)}
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
      {texts.missing(need - have)} {topUpUrl ? texts.topUpText : texts.askAdministrator}
    </ErrorCard>
  );
}
