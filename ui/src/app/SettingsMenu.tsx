import { Cpu, LogOut } from "lucide-react";
import { post } from "@/api/client";
import { Button, PopoverClose, Switch, toastProblem } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { desk } from "@/texts/desk";
import { entry } from "@/texts/entry";
import { useNotifications } from "./notifications";
import styles from "./SettingsMenu.module.css";
import { THEMES, type Theme, useTheme } from "./theme";

async function signOut(): Promise<void> {
  try {
    await post("/api/logout");
    location.assign("/sign-in");
  } catch (thrown) {
    toastProblem(thrown);
  }
}

export function SettingsMenu({ onDesk }: { onDesk: () => void }) {
  const [theme, setTheme] = useTheme();
  const { me, role, isGuest } = useSession();
  const { isOn, isPossible, change } = useNotifications();
  return (
    <div className={styles.settings}>
      <div className={styles.choices}>
        <span>{common.theme.name}</span>
        <Segmented
          name={common.theme.name}
          value={theme}
          choices={THEMES.map((each) => ({ value: each, name: common.theme[each] }))}
          onChange={(next) => setTheme(next as Theme)}
        />
      </div>
      <Switch
        name={common.notifications.name}
        hint={isPossible ? common.notifications.hint : common.notifications.missing}
        isOn={isOn}
        isDisabled={!isPossible}
        onChange={(wanted) => void change(wanted)}
      />
      {isGuest && (
        <section className={styles.guest} aria-label={desk.guest.title}>
          <strong>{desk.guest.title}</strong>
          <p>{desk.guest.text}</p>
          <p>
            {desk.guest.advice} <code>{desk.guest.command}</code>
          </p>
        </section>
      )}
      {role === "desk" && !isGuest ? (
        <PopoverClose>
          <Button icon={Cpu} onClick={onDesk}>
            {desk.open}
          </Button>
        </PopoverClose>
      ) : (
        <div className={styles.account}>
          {isGuest ? <span /> : <span title={me.email}>{me.email}</span>}
          <Button size="small" icon={LogOut} onClick={() => void signOut()}>
            {entry.signOut}
          </Button>
        </div>
      )}
    </div>
  );
}
