import { Star } from "lucide-react";
import { useState } from "react";
import { Card, Chip, FilterChip, Progress, RightClickMenu, StatusBadge, StatusDot } from "@/kit";
import { Facts } from "@/kit/Facts";
import { Sparkline } from "@/kit/Sparkline";
import { common } from "@/texts/common";
import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";
import { Section } from "./Section";
import { SAMPLE_MENU } from "./sample-menu";

const { sections } = texts;
const STATUSES = ["processing", "queued", "paused", "completed", "failed", "canceled"];
const LARGEST_SEED = 18446744073709551615n;

export function Indicators() {
  const { fields } = texts;
  const [filter, setFilter] = useState(0);
  return (
    <>
      <Section name={sections.status}>
        <div className={styles.row}>
          {STATUSES.map((each) => (
            <StatusBadge key={each} status={each} />
          ))}
          {STATUSES.map((each) => (
            <StatusDot key={each} status={each} />
          ))}
        </div>
        <div className={styles.columns}>
          <Progress name={common.loading} value={0.4} />
          <Progress name={common.loading} value={null} />
          <Progress
            name={common.loading}
            parts={[
              { status: "completed", part: 11 / 16 },
              { status: "failed", part: 1 / 16 },
              { status: "processing", part: 1 / 16 },
            ]}
          />
        </div>
        <div className={styles.spark}>
          <Sparkline name={texts.load} values={[3, 5, 4, 8, 9, 7, 9, 10, 9, 4, 6, 8]} maximum={10} />
        </div>
      </Section>
      <Section name={sections.chips}>
        <div className={styles.row}>
          {[common.status.running, common.status.waiting, common.status.completed].map((each, index) => (
            <FilterChip key={each} isOn={filter === index} count={index * 1200} onClick={() => setFilter(index)}>
              {each}
            </FilterChip>
          ))}
          <Chip icon={Star}>{texts.batches[0]}</Chip>
          <Chip onRemove={() => undefined}>{texts.batches[1]}</Chip>
        </div>
      </Section>
      <Section name={sections.cards}>
        <div className={styles.columns}>
          <Card>{texts.batches[0]}</Card>
          <RightClickMenu items={SAMPLE_MENU}>
            <Card isSelectable>{texts.batches[1]}</Card>
          </RightClickMenu>
          <Card isSelected>
            <Facts
              facts={[
                [fields.prompt, texts.prompt],
                [fields.seed, String(LARGEST_SEED)],
              ]}
            />
          </Card>
        </div>
      </Section>
    </>
  );
}
