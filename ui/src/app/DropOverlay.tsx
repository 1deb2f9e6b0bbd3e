import { useNavigate } from "@tanstack/react-router";
import { Upload } from "lucide-react";
import { queueDroppedFiles, useIsDraggingFiles, useWindowFileDrop } from "@/lib/file-drop";
import { common } from "@/texts/common";
import styles from "./DropOverlay.module.css";

/** Accepts files dropped anywhere. If the page does not take them, it opens Create with them. */
export function DropOverlay() {
  const navigate = useNavigate();
  useWindowFileDrop((files) => {
    queueDroppedFiles(files);
    void navigate({ to: "/create" });
  });
  if (!useIsDraggingFiles()) return null;
  return (
    <div className={styles.overlay}>
      <Upload aria-hidden strokeWidth={1.5} />
      <strong>{common.drop.title}</strong>
      <span>{common.drop.hint}</span>
    </div>
  );
}
