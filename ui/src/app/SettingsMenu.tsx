import { LogOut } from "lucide-react";
import { post } from "@/api/client";
import { Button, PopoverClose, Switch, toastProblem } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { LegalLinks } from "@/session/LegalLinks";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { desk } from "@/texts/desk";
import { entry } from "@/texts/entry";
import { useNotifications } from "./notifications";
import styles from "./SettingsMenu.module.css";
import { SHEETS, type Sheet } from "./sheets";
import { THEMES, type Theme, useTheme } from "./theme";

async function signOut(isDesk: boolean): Promise<void> {
  try {
    await post("/api/logout");
    // without a session, every page of a desk asks for the password or explains how to open the desk
    location.assign(isDesk ? "/" : "/sign-in");
  } catch (thrown) {
    toastProblem(thrown);
  }
}

export function SettingsMenu({ onSheet }: { onSheet: (sheet: Sheet) => void }) {
  const [theme, setTheme] = useTheme();
  const { me, role, isGuest } = useSession();
  const { isOn, isPossible, change } = useNotifications();
  const isOwner = role === "desk" && !isGuest;
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
      {isOwner && (
        <div className={styles.choices}>
          {SHEETS.map(([sheet, icon, name]) => (
            <PopoverClose key={sheet}>
              <Button icon={icon} onClick={() => onSheet(sheet)}>
                {name}
              </Button>
            </PopoverClose>
          ))}
        </div>
      )}
      <div className={styles.account}>
        {role === "desk" ? <span /> : <span title={me.email}>{me.email}</span>}
        <Button size="small" icon={LogOut} onClick={() => void signOut(role === "desk")}>
          {entry.signOut}
        </Button>
      </div>
      <a className={styles.licences} href="/licenses.txt" target="_blank" rel="noreferrer">
        {common.licences}
      </a>
      <LegalLinks />
    </div>
  );
}
