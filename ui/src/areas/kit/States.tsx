import { Images, Play } from "lucide-react";
import { Button, Card, EmptyState, ErrorCard, Skeleton } from "@/kit";
import { common } from "@/texts/common";
import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";
import { Section } from "./Section";

const { sections } = texts;

export function States() {
  return (
    <Section name={sections.states}>
      <div className={styles.columns}>
        <ErrorCard
          title={texts.error}
          details={texts.details}
          actions={
            <Button size="small" icon={Play}>
              {common.retry}
            </Button>
          }
        >
          {texts.advice}
        </ErrorCard>
        <ErrorCard title={texts.warning} tone="warn" />
        <ErrorCard title={texts.info} tone="info" />
        <Card>
          <Skeleton width="60%" />
          <Skeleton height={80} />
        </Card>
      </div>
      <EmptyState icon={Images} title={texts.empty} text={texts.emptyText}>
        <Button look="primary">{common.areas.create}</Button>
      </EmptyState>
    </Section>
  );
}
