import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

const NAME = "ComfyRelay.Queue";
const LABEL = "Queue on ComfyRelay";
const ALWAYS_CONNECTED = "Use Everywhere.Options.always_modify_graph";

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

// Unless this setting is on, Use Everywhere connects its nodes only when the editor itself queues a graph.
async function connectedGraph() {
  const { settings } = app.ui;
  const isChanged = app.ue_modified_prompt && !settings.getSettingValue(ALWAYS_CONNECTED);
  if (isChanged) await settings.setSettingValueAsync(ALWAYS_CONNECTED, true);
  try {
    // The pack needs the argument. The second name is that of older editors.
    return await app.graphToPrompt(app.rootGraph ?? app.graph);
  } finally {
    if (isChanged) await settings.setSettingValueAsync(ALWAYS_CONNECTED, false);
  }
}

async function queue() {
  callWidgets("beforeQueued");
  const { output: prompt, workflow } = await connectedGraph();
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
