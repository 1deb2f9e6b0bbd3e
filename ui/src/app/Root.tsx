import { Outlet, useLocation } from "@tanstack/react-router";
import { LiveProvider } from "@/live";
import { isEntry } from "./entering";
import { Shell } from "./Shell";

export function Root() {
  const path = useLocation({ select: (each) => each.pathname });
  if (isEntry(path)) return <Outlet />;
  return (
    <LiveProvider>
      <Shell />
    </LiveProvider>
  );
}
