// Mark the nodes whose packs have scripts that this server does not serve.
import { app } from "../../scripts/app.js";

app.registerExtension({
  name: "ComfyRelay.MarkNodes",
  beforeRegisterNodeDef(nodeType, { script_pack: pack }) {
    if (!pack) return;
    const { onNodeCreated } = nodeType.prototype;
    nodeType.prototype.onNodeCreated = function (...given) {
      this.badges.push(new LGraphBadge({ text: `Script of ${pack} not allowed`, fgColor: "#fff", bgColor: "#b42318" }));
      return onNodeCreated?.apply(this, given);
    };
  },
});
