import "./base.css";
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { setNonce } from "get-nonce";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { makeQueryClient } from "./api/queries";
import { followTabs } from "./api/tabs";
import { makeRouter } from "./app/routes";
import { TooltipProvider } from "./kit";

// what locks scrolling behind a dialog puts a style into the page, which only this number allows
setNonce(document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce ?? "");

const root = document.getElementById("root");
if (!root) throw new Error("The page has no #root");
const client = makeQueryClient();
followTabs(client);
const router = makeRouter(client);

createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <TooltipProvider delayDuration={400}>
        <RouterProvider router={router} />
      </TooltipProvider>
    </QueryClientProvider>
  </StrictMode>,
);
