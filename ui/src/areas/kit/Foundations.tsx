import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";
import { Section } from "./Section";

const { sections } = texts;
const COLORS = [
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

export function Foundations() {
  return (
    <>
      <Section name={sections.colors}>
        <div className={styles.swatches}>
          {COLORS.map((each) => (
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
    </>
  );
}
