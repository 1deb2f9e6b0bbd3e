import "./base.css";
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { setNonce } from "get-nonce";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { makeQueryClient } from "./api/queries";
import { subscribeToTabs } from "./api/tabs";
import { makeRouter } from "./app/routes";
import { TooltipProvider } from "./kit";

// the scroll lock of dialogs adds a style element, which the content security policy allows only with this nonce
setNonce(document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce ?? "");

const root = document.getElementById("root");
if (!root) throw new Error("The page has no #root");
const client = makeQueryClient();
subscribeToTabs(client);
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
