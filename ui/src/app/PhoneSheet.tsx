import { useQuery } from "@tanstack/react-query";
import { post } from "@/api/client";
import { sentence } from "@/api/problem";
import { Button, Dialog, Skeleton } from "@/kit";
import { CopyField } from "@/kit/CopyField";
import { settings as texts } from "@/texts/settings";
import styles from "./PhoneSheet.module.css";

const MARGIN = 4;

/** The dark squares of a QR code as an SVG path. */
export const codePath = (rows: readonly string[]): string =>
  rows
    .flatMap((row, y) => [...row].map((each, x) => (each === "1" ? `M${x + MARGIN} ${y + MARGIN}h1v1h-1z` : "")))
    .join("");

/** Shows a QR code that signs a phone in. */
export default function PhoneSheet({ onClose }: { onClose: () => void }) {
  const { data, error, isFetching, refetch } = useQuery({
    queryKey: ["phone-link"] as const,
    // each call creates a link that works once
    queryFn: async () => (await post("/api/desk/links/phone")).data,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
    retry: false,
    refetchOnWindowFocus: false,
  });
  const size = (data?.rows.length ?? 0) + 2 * MARGIN;
  return (
    <Dialog isOpen onClose={onClose} title={texts.phone.title} about={error ? sentence(error) : texts.phone.about}>
      {isFetching && !data && <Skeleton height={240} />}
      {data && (
        <div className={styles.sheet}>
          <svg className={styles.code} viewBox={`0 0 ${size} ${size}`} role="img" aria-label={texts.phone.code}>
            <rect width={size} height={size} fill="#fff" />
            <path d={codePath(data.rows)} fill="#000" shapeRendering="crispEdges" />
          </svg>
          <CopyField name={texts.phone.title} value={data.url} />
          <p>{texts.phone.unsafe}</p>
          <Button size="small" isBusy={isFetching} onClick={() => void refetch()}>
            {texts.phone.again}
          </Button>
        </div>
      )}
    </Dialog>
  );
}
