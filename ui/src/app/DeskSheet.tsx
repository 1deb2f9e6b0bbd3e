import { queryOptions, useQuery } from "@tanstack/react-query";
import { CircleAlert, CircleCheck, RotateCw, TriangleAlert } from "lucide-react";
import { get } from "@/api/client";
import { sentence } from "@/api/problem";
import { comfyuiUnreachable, desk as deskQuery, keys } from "@/api/queries";
import { Button, Dialog, ErrorCard, Heading, Skeleton } from "@/kit";
import { Facts } from "@/kit/Facts";
import { desk as texts } from "@/texts/desk";
import styles from "./DeskSheet.module.css";

const checks = queryOptions({
  queryKey: [...keys.desk, "checks"] as const,
  queryFn: ({ signal }) => get("/api/desk/checks", { signal }),
  staleTime: 0,
});

const processes = queryOptions({
  queryKey: [...keys.desk, "comfyui"] as const,
  queryFn: ({ signal }) => get("/api/desk/comfyui", { signal }),
  staleTime: 0,
});

const ICONS: Readonly<Record<string, typeof CircleCheck>> = {
  fine: CircleCheck,
  warning: TriangleAlert,
  broken: CircleAlert,
};

/** The configuration of the desk, its check results, and how to change it. */
export default function DeskSheet({ onClose }: { onClose: () => void }) {
  const { data: desk } = useQuery(deskQuery);
  const { data: unreachable = [] } = useQuery(comfyuiUnreachable);
  const { data: found, error, isFetching, refetch } = useQuery(checks);
  const { data: started, refetch: refetchProcesses } = useQuery(processes);
  const where = desk?.comfyui.join(", ") || texts.none;
  return (
    <Dialog isOpen onClose={onClose} title={texts.title} about={texts.about} isWide>
      <div className={styles.sheet}>
        {desk && (
          <Facts
            facts={[
              [texts.version, desk.version],
              [
                texts.comfyui,
                desk.simulated_jobs === "everything"
                  ? texts.simulator
                  : unreachable.length > 0
                    ? `${where} (${texts.unreachable})`
                    : where,
              ],
              [texts.dataFolder, desk.data_dir],
              [texts.inputFolder, desk.input_folder],
              [texts.outputFolder, desk.output_folder],
              [texts.configuration, found && (found.configuration ?? texts.noConfiguration)],
            ]}
          />
        )}
        <section className={styles.part}>
          <div className={styles.head}>
            <Heading>{texts.checks}</Heading>
            <Button size="small" icon={RotateCw} isBusy={isFetching} onClick={() => void refetch()}>
              {texts.again}
            </Button>
          </div>
          {error && <ErrorCard title={sentence(error)} />}
          {!found && !error && (
            <div role="status" aria-label={texts.checking}>
              <Skeleton height={120} />
            </div>
          )}
          {found && (
            <ul className={styles.checks}>
              {found.items.map(({ about, text, verdict }) => {
                const Icon = ICONS[verdict] ?? TriangleAlert;
                return (
                  <li key={`${about} ${text}`} data-verdict={verdict}>
                    <Icon role="img" aria-label={texts.verdicts[verdict] ?? verdict} />
                    <span>
                      <strong dir="auto">{about}</strong>
                      <span dir="auto">{text}</span>
                    </span>
                  </li>
                );
              })}
            </ul>
          )}
        </section>
        {started && started.items.length > 0 && (
          <section className={styles.part}>
            <Heading>{texts.processes}</Heading>
            {started.items.map(({ name, gpu, state, reason, log, lines }) => (
              <div key={log} className={styles.process}>
                <span dir="auto">
                  <strong>{name}</strong> {gpu} · {state}
                </span>
                {reason && <span dir="auto">{reason}</span>}
                <details onToggle={(event) => event.currentTarget.open && void refetchProcesses()}>
                  <summary>{texts.showLog}</summary>
                  <code dir="auto">{lines.join("\n") || texts.noLines}</code>
                  <span dir="auto">{log}</span>
                </details>
              </div>
            ))}
          </section>
        )}
        <section className={styles.part}>
          <Heading>{texts.change}</Heading>
          <p>{texts.changeText}</p>
          <div className={styles.ways}>
            {texts.ways.map(([what, command]) => (
              <div key={command}>
                {what}
                <code>{command}</code>
              </div>
            ))}
          </div>
        </section>
      </div>
    </Dialog>
  );
}
