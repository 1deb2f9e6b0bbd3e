import { useState } from "react";
import { Button, Card, Heading, StatusBadge } from "@/kit";
import { SelectionTray } from "@/kit/SelectionTray";
import { Table } from "@/kit/Table";
import { Tabs } from "@/kit/Tabs";
import { VirtualGrid } from "@/kit/VirtualGrid";
import { VirtualList } from "@/kit/VirtualList";
import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";
import { Section } from "./Section";

const { sections } = texts;
const STATUSES = ["processing", "queued", "paused", "completed", "failed", "canceled"];
const NUMBERS = Array.from({ length: 20_000 }, (_, at) => at + 1);

export function Collections() {
  const [tab, setTab] = useState(texts.tabs[0] ?? "");
  const [selected, setSelected] = useState(2);
  return (
    <>
      <Section name={sections.tabs}>
        <Tabs
          name={sections.tabs}
          value={tab}
          onChange={setTab}
          tabs={texts.tabs.map((each) => ({ value: each, name: each, content: texts.prompt }))}
        />
      </Section>
      <Section name={sections.table}>
        <Table
          name={sections.table}
          rows={texts.batches.map((name, at) => ({ name, status: STATUSES[at] ?? "", seconds: (at * 37) % 60 }))}
          keyOf={(row) => row.name}
          columns={[
            { id: "name", name: texts.columns.name, show: (row) => row.name, sort: (row) => row.name },
            { id: "status", name: texts.columns.status, show: (row) => <StatusBadge status={row.status} /> },
            {
              id: "time",
              name: texts.columns.time,
              align: "end",
              show: (row) => row.seconds,
              sort: (row) => row.seconds,
            },
          ]}
        />
      </Section>
      <Section name={sections.lists}>
        <div className={styles.columns}>
          <Card isPadded={false} className={styles.list ?? ""}>
            <VirtualList items={NUMBERS} keyOf={String} height={40} name={sections.lists}>
              {(each) => (
                <button type="button" className={styles.number}>
                  {each}
                </button>
              )}
            </VirtualList>
          </Card>
          <Card isPadded={false} className={styles.list ?? ""}>
            <VirtualGrid
              sections={[{ key: "today", heading: <Heading>{texts.today}</Heading>, items: NUMBERS }]}
              keyOf={String}
              width={72}
              padding={12}
              name={sections.lists}
            >
              {(each) => (
                <button type="button" className={styles.number}>
                  {each}
                </button>
              )}
            </VirtualGrid>
          </Card>
        </div>
      </Section>
      <Section name={sections.tray}>
        <SelectionTray count={selected} onClear={() => setSelected(0)}>
          <Button look="primary" size="small">
            {texts.words[2]}
          </Button>
          <Button size="small">{texts.words[3]}</Button>
        </SelectionTray>
      </Section>
    </>
  );
}
