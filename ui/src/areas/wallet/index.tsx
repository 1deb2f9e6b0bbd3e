import { useNavigate, useSearch } from "@tanstack/react-router";
import { Header } from "@/kit/Header";
import { Tabs } from "@/kit/Tabs";
import { wallet as texts } from "@/texts/wallet";
import { Account } from "./Account";
import { ApiTokens } from "./ApiTokens";
import { Balance } from "./Balance";
import { Uploads } from "./Uploads";
import { Webhooks } from "./Webhooks";
import styles from "./wallet.module.css";

const TABS = ["balance", "uploads", "tokens", "webhooks", "account"];

export default function WalletPage() {
  const { tab } = useSearch({ from: "/wallet" });
  const navigate = useNavigate({ from: "/wallet" });
  const open = tab && TABS.includes(tab) ? tab : "balance";
  return (
    <>
      <Header title={texts.title} />
      <div className={styles.wallet}>
        <Tabs
          name={texts.tabs.name}
          value={open}
          onChange={(next) => void navigate({ search: next === "balance" ? {} : { tab: next } })}
          tabs={[
            { value: "balance", name: texts.tabs.balance, content: <Balance /> },
            { value: "uploads", name: texts.tabs.uploads, content: <Uploads /> },
            { value: "tokens", name: texts.tabs.tokens, content: <ApiTokens /> },
            { value: "webhooks", name: texts.tabs.webhooks, content: <Webhooks /> },
            { value: "account", name: texts.tabs.account, content: <Account /> },
          ]}
        />
      </div>
    </>
  );
}
