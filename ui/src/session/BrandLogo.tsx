import { Logo } from "@/kit/Logo";
import { useBrand } from "./brand";

/** The logo of the operator, or ours. */
export function BrandLogo({ size = 28 }: { size?: number }) {
  const { logo_url: url } = useBrand();
  return url ? <img src={url} alt="" height={size} style={{ maxWidth: 4 * size }} /> : <Logo size={size} />;
}
