import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

const NAME = "ComfyRelay.Queue";
const LABEL = "Queue on ComfyRelay";

function* nodesIn(graph) {
  for (const node of graph.nodes) {
    yield node;
    if (node.subgraph) yield* nodesIn(node.subgraph);
  }
}

// Call the same callbacks as the editor does for a run, so that widgets choose new seeds.
function callWidgets(name) {
  for (const node of nodesIn(app.graph)) {
    for (const widget of node.widgets ?? []) widget[name]?.({});
  }
}

function tell(severity, detail) {
  app.extensionManager.toast.add({ severity, summary: LABEL, detail, life: 8000 });
}

async function queue() {
  callWidgets("beforeQueued");
  const { output: prompt, workflow } = await app.graphToPrompt();
  const response = await api.fetchApi("/comfyrelay/jobs", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ prompt, workflow, client_id: api.clientId }),
  });
  const { error } = await response.json().catch(() => ({ error: `ComfyUI answered ${response.status}.` }));
  if (error) return tell("error", error);
  callWidgets("afterQueued");
  app.canvas.draw(true, true);
  tell("info", "The graph is in the queue.");
}

app.registerExtension({
  name: NAME,
  commands: [{ id: NAME, label: LABEL, icon: "pi pi-send", function: queue }],
  menuCommands: [{ path: ["ComfyRelay"], commands: [NAME] }],
  actionBarButtons: [{ icon: "pi pi-send", label: LABEL, tooltip: LABEL, onClick: queue }],
});
