// All components, in every state.

import { Dices, Download, Images, Lock, Pause, Play, Star, Trash2 } from "lucide-react";
import { type ReactNode, useState } from "react";
import type { Whole } from "@/api/json";
import {
  Button,
  Card,
  Checkbox,
  Chip,
  Dialog,
  Drawer,
  EmptyState,
  ErrorCard,
  Field,
  FilterChip,
  Heading,
  IconButton,
  Kbd,
  Menu,
  NumberField,
  Progress,
  RightClickMenu,
  Select,
  Skeleton,
  StatusBadge,
  StatusDot,
  Switch,
  TextArea,
  TextField,
  Tooltip,
  toast,
} from "@/kit";
import { Combobox } from "@/kit/Combobox";
import { CompareSlider } from "@/kit/CompareSlider";
import { CopyField } from "@/kit/CopyField";
import { DropZone } from "@/kit/DropZone";
import { Facts } from "@/kit/Facts";
import { Header } from "@/kit/Header";
import { Media } from "@/kit/Media";
import { Player } from "@/kit/Player";
import { Segmented } from "@/kit/Segmented";
import { SelectionTray } from "@/kit/SelectionTray";
import { Sparkline } from "@/kit/Sparkline";
import { Table } from "@/kit/Table";
import { Tabs } from "@/kit/Tabs";
import { VirtualGrid } from "@/kit/VirtualGrid";
import { VirtualList } from "@/kit/VirtualList";
import { common } from "@/texts/common";
import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";

const COLOURS = [
  "bg",
  "surface",
  "raised",
  "hover",
  "line",
  "text",
  "muted",
  "faint",
  "accent-fill",
  "accent",
  "good",
  "bad",
  "warn",
  "info",
];
const SIZES = ["xs", "s", "m", "l", "xl", "2xl"];
const STATUSES = ["processing", "queued", "paused", "completed", "failed", "canceled"];
const SAMPLERS = ["euler", "euler_ancestral", "dpmpp_2m", "dpmpp_2m_sde", "uni_pc"].map((value) => ({ value }));
const MODELS = Array.from({ length: 40 }, (_, at) => ({
  value: `wan2.2_i2v_${at % 2 ? "low" : "high"}_noise_14B_${at}.safetensors`,
}));
const NUMBERS = Array.from({ length: 20_000 }, (_, at) => at + 1);
const SAMPLE = { url: "/api/desk/sample", mime_type: "image/png" };
const GONE = { url: "/files/gone", mime_type: "image/png" };
const VIDEO = { url: "/files/gone.mp4", mime_type: "video/mp4", poster_url: "/api/desk/sample", seconds: 5 };
const LARGEST_SEED = 18446744073709551615n;

function Section({ name, children }: { name: string; children: ReactNode }) {
  return (
    <section className={styles.section}>
      <Heading>{name}</Heading>
      {children}
    </section>
  );
}

export default function Kit() {
  const { sections, fields } = texts;
  const [opened, setOpened] = useState<"dialog" | "drawer" | null>(null);
  const [steps, setSteps] = useState<Whole | null>(20);
  const [seed, setSeed] = useState<Whole | null>(LARGEST_SEED);
  const [sampler, setSampler] = useState("euler");
  const [model, setModel] = useState<string | null>(null);
  const [isOn, setOn] = useState(true);
  const [filter, setFilter] = useState(0);
  const [tab, setTab] = useState(texts.tabs[0] ?? "");
  const [selected, setSelected] = useState(2);
  const close = () => setOpened(null);
  const menu = [
    [
      { name: texts.words[2] ?? "", icon: Dices, keys: "shift+r", run: () => setOn(!isOn) },
      { name: common.areas.gallery, icon: Images, isOn: true, run: close },
    ],
    [{ name: texts.words[3] ?? "", icon: Trash2, isDanger: true, run: close }],
  ];
  return (
    <>
      <Header title={texts.title} actions={<Kbd keys="mod+k" />} />
      <div className={styles.page}>
        <Section name={sections.colours}>
          <div className={styles.swatches}>
            {COLOURS.map((each) => (
              <div key={each} className={styles.swatch}>
                <span style={{ background: `var(--${each})` }} />
                {each}
              </div>
            ))}
          </div>
        </Section>
        <Section name={sections.type}>
          {SIZES.map((each) => (
            <p key={each} style={{ fontSize: `var(--text-${each})` }}>
              {texts.prompt}
            </p>
          ))}
        </Section>
        <Section name={sections.buttons}>
          {(["medium", "small", "large"] as const).map((size) => (
            <div key={size} className={styles.row}>
              <Button look="primary" size={size}>
                {texts.words[0]}
              </Button>
              <Button icon={Pause} size={size}>
                {texts.words[1]}
              </Button>
              <Button look="quiet" icon={Dices} size={size}>
                {texts.words[2]}
              </Button>
              <Button look="danger" icon={Trash2} size={size}>
                {texts.words[3]}
              </Button>
              <Button isBusy size={size}>
                {texts.words[4]}
              </Button>
              <Button disabled size={size}>
                {texts.words[5]}
              </Button>
              {size !== "large" && (
                <>
                  <IconButton icon={Star} name={common.more} keys="s" size={size} />
                  <IconButton icon={Lock} name={common.close} isPressed size={size} />
                  <IconButton icon={Download} name={common.copy} disabled size={size} />
                </>
              )}
            </div>
          ))}
        </Section>
        <Section name={sections.fields}>
          <div className={styles.columns}>
            <Field name={fields.prompt} aside={fields.hint}>
              <TextArea defaultValue={texts.prompt} />
            </Field>
            <Field name={fields.negative}>
              <TextArea placeholder={texts.prompt} />
            </Field>
            <Field name={fields.name} problem={fields.problem} isRequired>
              <TextField defaultValue={texts.batches[0]} />
            </Field>
            <Field name={fields.steps} hint={fields.hint}>
              <NumberField value={steps} onChange={setSteps} minimum={1} maximum={150} isWhole />
            </Field>
            <Field name={fields.seed}>
              <NumberField value={seed} onChange={setSeed} minimum={0} maximum={LARGEST_SEED} isWhole />
            </Field>
            <Field name={fields.sampler}>
              <Select value={sampler} choices={SAMPLERS} onChange={setSampler} />
            </Field>
            <Field name={fields.model}>
              <Combobox value={model} choices={MODELS} onChange={setModel} />
            </Field>
            <Field name={common.theme.name}>
              <TextField disabled value={common.theme.system} />
            </Field>
            <Switch name={fields.switch} hint={fields.switchHint} isOn={isOn} onChange={setOn} />
            <Segmented
              name={common.theme.name}
              value={isOn ? "on" : "off"}
              choices={[
                { value: "on", name: common.theme.dark },
                { value: "off", name: common.theme.light },
              ]}
              onChange={(next) => setOn(next === "on")}
            />
            <div className={styles.row}>
              <Checkbox name={fields.name} isOn={isOn} onChange={setOn} />
              <Checkbox name={fields.seed} isOn="some" onChange={setOn} />
              <Checkbox name={fields.steps} isOn={false} onChange={setOn} isDisabled />
            </div>
            <DropZone title={texts.drop} hint={texts.dropHint} onFiles={(files) => toast(String(files.length))} />
            <CopyField name={texts.secret} value={texts.secret} />
          </div>
        </Section>
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
            <Chip onRemove={close}>{texts.batches[1]}</Chip>
          </div>
        </Section>
        <Section name={sections.cards}>
          <div className={styles.columns}>
            <Card>{texts.batches[0]}</Card>
            <RightClickMenu items={menu}>
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
        <Section name={sections.overlays}>
          <div className={styles.row}>
            <Button onClick={() => setOpened("dialog")}>{texts.open.dialog}</Button>
            <Button onClick={() => setOpened("drawer")}>{texts.open.drawer}</Button>
            <Menu items={menu} align="start">
              <Button>{texts.open.menu}</Button>
            </Menu>
            <Tooltip text={texts.prompt} keys="g q">
              <Button>{texts.open.tooltip}</Button>
            </Tooltip>
            <Button
              onClick={() => toast({ text: texts.toastGood, tone: "good", action: { name: texts.undo, run: close } })}
            >
              {texts.open.good}
            </Button>
            <Button onClick={() => toast({ text: texts.toastBad, tone: "bad" })}>{texts.open.bad}</Button>
          </div>
          <Dialog
            isOpen={opened === "dialog"}
            onClose={close}
            title={texts.dialog}
            about={texts.dialogAbout}
            actions={
              <>
                <Button onClick={close}>{common.close}</Button>
                <Button look="primary" onClick={close}>
                  {texts.words[0]}
                </Button>
              </>
            }
          >
            <Field name={fields.name}>
              <TextField />
            </Field>
          </Dialog>
          <Drawer isOpen={opened === "drawer"} onClose={close} title={texts.drawer}>
            {texts.prompt}
          </Drawer>
        </Section>
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
        <Section name={sections.media}>
          <div className={styles.columns}>
            <div className={styles.tile}>
              <Media file={SAMPLE} name={texts.prompt} />
            </div>
            <div className={styles.tile}>
              <Media file={VIDEO} name={texts.prompt} playsOnHover={false} />
            </div>
            <div className={styles.tile}>
              <Media file={GONE} name={texts.prompt} />
            </div>
            <div className={styles.tile}>
              <Media file={{ url: "", mime_type: "audio/wav", seconds: 84 }} name={texts.prompt} />
            </div>
            <CompareSlider
              before={<Media file={SAMPLE} name={texts.input} />}
              after={<Media file={SAMPLE} name={texts.output} />}
              beforeName={texts.input}
              afterName={texts.output}
            />
            <div className={styles.tile}>
              <Player file={VIDEO} name={texts.prompt} />
            </div>
          </div>
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
        <Section name={sections.tray}>
          <SelectionTray count={selected} onClear={() => setSelected(0)}>
            <Button look="primary" size="small">
              {texts.words[2]}
            </Button>
            <Button size="small">{texts.words[3]}</Button>
          </SelectionTray>
        </Section>
      </div>
    </>
  );
}
