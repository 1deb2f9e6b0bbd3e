import { useNavigate } from "@tanstack/react-router";
import { Command } from "cmdk";
import { Dialog } from "radix-ui";
import { Kbd } from "@/kit";
import { type Command as PaletteCommand, useAllCommands } from "@/lib/commands";
import { stringifySearch } from "@/lib/search-params";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import styles from "./Palette.module.css";
import { pagesOf } from "./pages";

export default function Palette({ onClose }: { onClose: () => void }) {
  const { role } = useSession();
  const navigate = useNavigate();
  const pages: PaletteCommand[] = pagesOf(role).map(({ to, search = {}, ...each }) => ({
    ...each,
    id: `${to}${stringifySearch(search)}`,
    run: () => void navigate({ to, search }),
  }));
  const commands: readonly PaletteCommand[] = [...useAllCommands(), ...pages];
  const groups = [...new Set(commands.map((each) => each.group))];
  return (
    <Dialog.Root open onOpenChange={(open) => !open && onClose()}>
      <Dialog.Portal>
        <Dialog.Overlay className={styles.veil} />
        <Dialog.Content className={styles.palette} aria-describedby={undefined} data-owns-keys>
          <Dialog.Title className="visually-hidden">{common.palette.name}</Dialog.Title>
          <Command label={common.palette.name} loop>
            <Command.Input className={styles.input} placeholder={common.palette.placeholder} />
            <Command.List className={styles.list}>
              <Command.Empty className={styles.empty}>{common.palette.empty}</Command.Empty>
              {groups.map((group) => (
                <Command.Group key={group} heading={group} className={styles.group}>
                  {commands
                    .filter((each) => each.group === group)
                    .map(({ id, name, icon: Icon, keys, words = [], run }) => (
                      <Command.Item
                        key={id}
                        value={`${id} ${name}`}
                        keywords={[...words]}
                        className={styles.item}
                        onSelect={() => {
                          onClose();
                          run();
                        }}
                      >
                        {Icon ? <Icon aria-hidden /> : <span className={styles.noIcon} />}
                        <span>{name}</span>
                        {keys && <Kbd keys={keys} />}
                      </Command.Item>
                    ))}
                </Command.Group>
              ))}
            </Command.List>
          </Command>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
