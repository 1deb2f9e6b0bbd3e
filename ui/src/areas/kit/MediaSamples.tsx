import { CompareSlider } from "@/kit/CompareSlider";
import { Media } from "@/kit/Media";
import { Player } from "@/kit/Player";
import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";
import { Section } from "./Section";

const { sections } = texts;
const SAMPLE = { url: "/api/desk/sample", mime_type: "image/png" };
const GONE = { url: "/files/gone", mime_type: "image/png" };
const VIDEO = { url: "/files/gone.mp4", mime_type: "video/mp4", poster_url: "/api/desk/sample", seconds: 5 };

export function MediaSamples() {
  return (
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
  );
}
