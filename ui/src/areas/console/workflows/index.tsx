import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Plus, Upload, Workflow as WorkflowIcon } from "lucide-react";
import { useRef } from "react";
import { Button, Chip, EmptyState } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { Table } from "@/kit/Table";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { shared } from "@/texts/console-shared";
import { workflows as texts } from "@/texts/console-workflows";
import { effects, fleets, type Summary, workflows } from "../catalogue/queries";
import { acceptedFiles, useWorkflowImport } from "../catalogue/use-workflow-import";
import { QueryResult, RelativeTime, Sheet, State, sheet } from "../shared/sheet";

export default function WorkflowsPage() {
  const { q = "" } = useSearch({ from: "/console/workflows" });
  const navigate = useNavigate({ from: "/console/workflows" });
  const found = useQuery(workflows);
  const { data: allEffects = [] } = useQuery(effects);
  const { data: groups = [] } = useQuery(fleets);
  const { take, isBusy, dialog } = useWorkflowImport();
  const chooser = useRef<HTMLInputElement>(null);
  const choose = () => chooser.current?.click();
  const wanted = q.toLowerCase();
  const { columns } = texts;
  const fleetsOf = (slug: string) => groups.filter((each) => each.workflow_slugs.includes(slug));
  return (
    <>
      <Header
        title={console_.pages.workflows}
        search={
          <SearchField
            value={q}
            placeholder={texts.find}
            onChange={(next) => void navigate({ search: (before) => ({ ...before, q: next }), replace: true })}
          />
        }
        actions={
          <Button look="primary" icon={Plus} isBusy={isBusy} onClick={choose}>
            {texts.add}
          </Button>
        }
      />
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={texts.choose}
        accept={acceptedFiles}
        multiple
        onChange={(event) => {
          take([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      <Sheet>
        <QueryResult query={found}>
          {(all) => {
            const rows = all.filter((each) => `${each.name} ${each.slug}`.toLowerCase().includes(wanted));
            if (!all.length) {
              return (
                <EmptyState icon={WorkflowIcon} title={texts.emptyTitle} text={texts.empty}>
                  <Button icon={Upload} onClick={choose}>
                    {texts.choose}
                  </Button>
                </EmptyState>
              );
            }
            if (!rows.length) return <EmptyState icon={WorkflowIcon} title={common.nothingFound} />;
            return (
              <>
                <Table<Summary>
                  name={console_.pages.workflows}
                  rows={rows}
                  keyOf={(each) => each.slug}
                  columns={[
                    {
                      id: "name",
                      name: columns.name,
                      sort: (each) => each.name.toLowerCase(),
                      show: (each) => (
                        <div className={sheet.rowName}>
                          <Link to="/console/workflows/$slug" params={{ slug: each.slug }}>
                            {each.name}
                          </Link>
                          <span>{each.slug}</span>
                        </div>
                      ),
                    },
                    {
                      id: "makes",
                      name: columns.makes,
                      sort: (each) => each.output_mime_type,
                      show: (each) => texts.makes(each.output_mime_type),
                    },
                    {
                      id: "inputs",
                      name: columns.inputs,
                      show: (each) =>
                        texts.inputs(
                          each.properties.filter((one) => one.user_configurable || one.is_primary_input).length,
                          each.properties.length,
                        ),
                    },
                    {
                      id: "fleets",
                      name: columns.fleets,
                      show: (each) =>
                        fleetsOf(each.slug).length ? (
                          <span className={sheet.chips}>
                            {fleetsOf(each.slug).map((one) => (
                              <Chip key={one.id}>{one.slug}</Chip>
                            ))}
                          </span>
                        ) : (
                          <span className={sheet.muted}>{texts.noFleet}</span>
                        ),
                    },
                    {
                      id: "effects",
                      name: columns.effects,
                      align: "end",
                      sort: (each) => allEffects.filter((one) => one.workflow_slug === each.slug).length,
                      show: (each) => shared.count(allEffects.filter((one) => one.workflow_slug === each.slug).length),
                    },
                    {
                      id: "state",
                      name: columns.state,
                      sort: (each) => Number(each.is_active),
                      show: (each) => (
                        <State tone={each.is_active ? "good" : "idle"}>
                          {each.is_active ? shared.active : shared.inactive}
                        </State>
                      ),
                    },
                    {
                      id: "changed",
                      name: columns.changed,
                      sort: (each) => each.updated_at,
                      show: (each) => <RelativeTime at={each.updated_at} />,
                    },
                  ]}
                />
                <p className={sheet.faint}>{texts.dropHint}</p>
              </>
            );
          }}
        </QueryResult>
      </Sheet>
      {dialog}
    </>
  );
}
