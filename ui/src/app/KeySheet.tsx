import { Dialog, Heading, Kbd } from "@/kit";
import { useAllKeys } from "@/lib/keyboard";
import { common } from "@/texts/common";
import styles from "./KeySheet.module.css";

/** Lists all registered shortcuts. */
export default function KeySheet({ onClose }: { onClose: () => void }) {
  const shown = useAllKeys().filter((each) => !each.isHidden);
  // the newest registration of a key wins
  const newest = [...new Map(shown.map((each) => [each.keys, each])).values()];
  const groups = [...new Set(newest.map((each) => each.group))];
  return (
    <Dialog isOpen onClose={onClose} title={common.keys.name} about={common.keys.hint} isWide>
      <div className={styles.groups}>
        {groups.map((group) => (
          <section key={group} className={styles.group}>
            <Heading>{group}</Heading>
            <dl>
              {newest
                .filter((each) => each.group === group)
                .map((each) => (
                  <div key={each.keys} className={styles.row}>
                    <dt>{each.name}</dt>
                    <dd>
                      <Kbd keys={each.keys} />
                    </dd>
                  </div>
                ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
