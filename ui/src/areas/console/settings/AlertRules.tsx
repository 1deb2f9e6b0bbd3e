import { useMutation, useQuery } from "@tanstack/react-query";
import { BellRing } from "lucide-react";
import { Button, toast, toastProblem } from "@/kit";
import { Table } from "@/kit/Table";
import { alerts as texts } from "@/texts/console-operation";
import { type AlertRule, alertRules, testAlert } from "../operations/queries";
import { QueryResult, RelativeTime, Section, State, sheet } from "../shared/sheet";

/** The alert rules with their receivers, and a test for each rule. */
export function AlertRules() {
  const found = useQuery(alertRules);
  const test = useMutation({
    mutationFn: (rule: AlertRule) => testAlert(rule.name),
    onSuccess: ({ data }) => {
      const failures = Object.entries(data.failures);
      if (!failures.length) toast({ text: texts.sent, tone: "good" });
      for (const [url, why] of failures) toast({ text: texts.failed(url, why), tone: "bad" });
    },
    onError: toastProblem,
  });
  return (
    <Section title={texts.title} about={texts.about}>
      <QueryResult query={found}>
        {({ items }) =>
          items.length ? (
            <Table<AlertRule>
              name={texts.title}
              rows={items}
              keyOf={(each) => each.name}
              columns={[
                { id: "rule", name: texts.columns.rule, show: (each) => texts.rule(each.name) },
                {
                  id: "urls",
                  name: texts.columns.urls,
                  isLong: true,
                  show: (each) => (
                    <div className={sheet.rowName}>
                      {each.urls.map((url) => (
                        <span key={url}>
                          {url} {each.failures[url] && <State tone="bad">{each.failures[url]}</State>}
                        </span>
                      ))}
                    </div>
                  ),
                },
                { id: "quiet", name: texts.columns.quiet, show: (each) => texts.quiet(each.quiet_minutes) },
                {
                  id: "last",
                  name: texts.columns.last,
                  show: (each) => (each.last_sent_at ? <RelativeTime at={each.last_sent_at} /> : texts.never),
                },
                {
                  id: "actions",
                  name: texts.columns.actions,
                  align: "end",
                  show: (each) => (
                    <Button
                      size="small"
                      icon={BellRing}
                      aria-label={texts.testOf(texts.rule(each.name))}
                      isBusy={test.isPending && test.variables?.name === each.name}
                      onClick={() => test.mutate(each)}
                    >
                      {texts.test}
                    </Button>
                  ),
                },
              ]}
            />
          ) : (
            <p className={sheet.about}>{texts.none}</p>
          )
        }
      </QueryResult>
    </Section>
  );
}
