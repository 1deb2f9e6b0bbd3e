import { useQueries } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import { gallery as texts } from "@/texts/gallery";
import styles from "./Compare.module.css";
import { findDifferences } from "./differences";
import { items } from "./item-store";
import { aboutJob } from "./queries";

export function DifferencesTable({ ids }: { ids: readonly string[] }) {
  // one text, because a new list on every call would cause endless renders
  const jobIds = useSyncExternalStore(items.watch, () => ids.map((id) => items.get(id)?.job_id ?? "").join());
  const asked = useQueries({ queries: jobIds.split(",").map((id) => ({ ...aboutJob(id), enabled: id !== "" })) });
  const { compare } = texts;
  const made = asked.map(({ data }) => data?.inputs);
  if (!made.every((each) => each !== undefined)) return null;
  const found = findDifferences(made);
  return (
    <section className={styles.differences} aria-label={compare.differs}>
      {found.length === 0 && <p>{compare.same}</p>}
      {found.length > 0 && (
        <table>
          <thead>
            <tr>
              <th scope="col">{compare.differs}</th>
              {ids.map((id, at) => (
                <th key={id} scope="col">
                  {compare.letters[at]}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.map(({ label, values }) => (
              <tr key={label}>
                <th scope="row">{label}</th>
                {values.map((value, at) => (
                  <td key={ids[at]} title={value}>
                    {value || "—"}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
