"""Record how the editor of a running ComfyUI exports each template.

python -m tests.unit.comfyui.editor http://127.0.0.1:8188

The editor runs in Chromium. It stores hashes of the exports, or the nodes that this ComfyUI is missing, and the part of
the node definitions that a conversion reads.
"""

import argparse
import asyncio
import json
import shutil
from typing import Any

import httpx
from playwright.async_api import async_playwright

from tests.unit.comfyui.editor.templates import DEFINITIONS, EXPORTS, fingerprint, reduced, templates, versions

# The second name is that of older editors.
_GRAPH = "(window.app?.rootGraph ?? window.app?.graph)"
READY = f"{_GRAPH} && Object.keys(window.LiteGraph?.registered_node_types ?? {{}}).length > 100"
EXPORT = """async (workflow) => {
    const quiet = {showMissingNodesDialog: false, showMissingModelsDialog: false}
    await window.app.loadGraphData(workflow, true, true, null, quiet)
    // some inputs settle with the next frame
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
    return (await window.app.graphToPrompt(window.app.rootGraph ?? window.app.graph)).output
}"""


async def main(url: str) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        definitions = (await http.get(f"{url}/object_info")).raise_for_status().json()
    exports: dict[str, str | list[str]] = {}
    used: set[str] = set()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(url)
        await page.wait_for_function(READY, timeout=180_000)
        for name, workflow in templates():
            graph: dict[str, Any] = await page.evaluate(EXPORT, workflow)
            # These are the nodes that this server does not know.
            missing = sorted({node["class_type"] for node in graph.values()} - definitions.keys())
            exports[name] = missing or fingerprint(graph, definitions)
            used |= _types_in(workflow)
            print(name, flush=True)
        await browser.close()
    used_definitions = {name: reduced(definitions[name]) for name in sorted(used & definitions.keys())}
    DEFINITIONS.write_text(json.dumps(used_definitions, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")
    EXPORTS.write_text(json.dumps({"versions": versions(), "exports": exports}, indent=1) + "\n", encoding="utf-8")


def _types_in(value: Any) -> set[str]:
    """Return all node types of a workflow, including subgraphs."""
    found: set[str] = set()
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("type"), str):
                found.add(part["type"])
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="a running ComfyUI, with its editor")
    asyncio.run(main(parser.parse_args().url.rstrip("/")))
