// All components in all their states.

import { Kbd } from "@/kit";
import { Header } from "@/kit/Header";
import { kit as texts } from "@/texts/kit";
import { Collections } from "./Collections";
import { Controls } from "./Controls";
import { Foundations } from "./Foundations";
import { Indicators } from "./Indicators";
import styles from "./kit.module.css";
import { MediaSamples } from "./MediaSamples";
import { Overlays } from "./Overlays";
import { States } from "./States";

export default function KitPage() {
  return (
    <>
      <Header title={texts.title} actions={<Kbd keys="mod+k" />} />
      <div className={styles.page}>
        <Foundations />
        <Controls />
        <Indicators />
        <Overlays />
        <Collections />
        <MediaSamples />
        <States />
      </div>
    </>
  );
}
