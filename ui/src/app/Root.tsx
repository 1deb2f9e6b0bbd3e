import { Outlet, useLocation } from "@tanstack/react-router";
import { LiveProvider } from "@/live";
import { useBrandedApp } from "@/session/brand";
import { isPublicPage } from "@/session/sign-in-guard";
import { Shell } from "./Shell";

export function Root() {
  useBrandedApp();
  const path = useLocation({ select: (each) => each.pathname });
  if (isPublicPage(path)) return <Outlet />;
  return (
    <LiveProvider>
      <Shell />
    </LiveProvider>
  );
}
