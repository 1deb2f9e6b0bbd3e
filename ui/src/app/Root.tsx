import { Outlet, useLocation } from "@tanstack/react-router";
import { LiveProvider } from "@/live";
import { isPublicPage } from "@/session/sign-in-guard";
import { Shell } from "./Shell";

export function Root() {
  const path = useLocation({ select: (each) => each.pathname });
  if (isPublicPage(path)) return <Outlet />;
  return (
    <LiveProvider>
      <Shell />
    </LiveProvider>
  );
}
