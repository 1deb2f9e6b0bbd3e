"""`python -m tests.compat.oracle`: compare conversions of template files with the exports of a real editor.

It starts a version of ComfyUI, opens its editor in Chromium, loads every template of the installed packages, and
compares the graph that the editor would send with the one that `convert_workflow` makes.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from playwright.async_api import Page

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.supervisor import ProcessState, Supervisor
from comfyrelay.errors import ComfyRelayError, NotInstalled
from tests.compat.__main__ import FOLDER
from tests.support.chromium import open_chromium
from tests.unit.comfyui.editor.__main__ import EXPORT, READY

START_SECONDS = 300.0
LOAD_MS = 60_000


class Comparison(NamedTuple):
    template: str
    # "equal", "different", "refused" by our conversion, "missing nodes", or "failed" in the editor.
    result: str
    detail: str


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="version of ComfyUI, a folder below --folder")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the versions; default: %(default)s")
    parser.add_argument("--frontend", type=Path, help="folder `static` of another editor package")
    parser.add_argument("--templates", type=Path, help="site-packages folder with another template package")
    parser.add_argument("--only", help="only templates whose name contains this text")
    options = parser.parse_args(words)
    found = asyncio.run(_compare_all(options))
    counts = Counter(comparison.result for comparison in found)
    comparable = len(found) - counts["missing nodes"]
    share = 100 * counts["equal"] / comparable if comparable else 0.0
    sys.stdout.write(
        f"{dict(counts)}\n{counts['equal']} of {comparable} comparable templates are equal: {share:.1f} %\n"
    )
    return 0


async def _compare_all(options: argparse.Namespace) -> list[Comparison]:
    install = options.folder / options.version
    arguments = ("--cpu", *(["--front-end-root", str(options.frontend.absolute())] if options.frontend else []))
    gpu = LocalGpu(key="cpu", name="CPU", memory_bytes=None, variables={})
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(ManagedOptions(folder=install, arguments=arguments), folder=Path(folder), gpus=[gpu])
        await supervisor.open()
        try:
            async with asyncio.timeout(START_SECONDS):
                # The supervisor sends no signal.
                while not supervisor.processes or supervisor.processes[0].state is not ProcessState.UP:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            url = supervisor.processes[0].url
            async with ComfyClient(url) as client, open_chromium() as browser:
                definitions = await client.object_info()
                # Drawing takes most of the time, so there is little to draw.
                page = await browser.new_page(viewport={"width": 160, "height": 120})
                page.set_default_timeout(LOAD_MS)
                await page.goto(url)
                await page.wait_for_function(READY, timeout=1000 * START_SECONDS)
                found = []
                for name, workflow in _templates(options.templates or _packages_of(install)):
                    if not options.only or options.only in name:
                        found.append(await _compare(page, name, workflow, definitions))
                        sys.stdout.write(" ".join(filter(None, [found[-1].result, name, found[-1].detail])) + "\n")
                        sys.stdout.flush()
                return found
        finally:
            await supervisor.close()


def _packages_of(install: Path) -> Path:
    """Return the site-packages folder of the environment, also one that it includes by a `.pth` file."""
    [packages] = (install / ".venv" / "lib").glob("python*/site-packages")
    if list(packages.glob("comfyui_workflow_templates*/templates")):
        return packages
    for file in packages.glob("*.pth"):
        folder = Path(file.read_text("utf-8").strip())
        if list(folder.glob("comfyui_workflow_templates*/templates")):
            return folder
    raise SystemExit(f"No templates are installed in {packages}.")


def _templates(packages: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(packages.glob("comfyui_workflow_templates*/templates/*.json")):
        if is_editor_file(value := json.loads(file.read_text("utf-8"))):
            yield file.name, value


async def _compare(page: Page, name: str, workflow: dict[str, Any], definitions: Mapping[str, Any]) -> Comparison:
    try:
        async with asyncio.timeout(LOAD_MS / 1000):
            exported: dict[str, Any] = await page.evaluate(EXPORT, workflow)
    except Exception as error:
        # The editor reports any of its errors.
        return Comparison(name, "failed", str(error).splitlines()[0][:200])
    # The editor exports no class of a node that it does not know.
    if missing := sorted({str(node["class_type"]) for node in exported.values()} - definitions.keys()):
        return Comparison(name, "missing nodes", ", ".join(missing))
    try:
        converted = convert_workflow(workflow, definitions)
    except NotInstalled as error:
        return Comparison(name, "missing nodes", error.detail)
    except ComfyRelayError as error:
        return Comparison(name, "refused", error.detail)
    difference = _difference(exported, converted, definitions)
    return Comparison(name, "equal" if difference is None else "different", difference or "")


def _difference(
    exported: Mapping[str, Any], converted: Mapping[str, Any], definitions: Mapping[str, Any]
) -> str | None:
    """Return the first difference that a server would notice. The editor renumbers nodes if two subgraphs use the
    same numbers, and may send nodes that no output needs: both change nothing."""
    if exported.keys() != converted.keys():
        if _shapes(exported, definitions) == _shapes(converted, definitions):
            return None
        return f"nodes {sorted(exported.keys() ^ converted.keys())[:10]} are in one of them"
    for node_id, node in exported.items():
        ours = converted[node_id]
        if node["class_type"] != ours["class_type"]:
            return f"node {node_id} is {ours['class_type']}, not {node['class_type']}"
        theirs_, ours_ = node["inputs"], ours["inputs"]
        for key in sorted(theirs_.keys() | ours_.keys()):
            if theirs_.get(key, "(absent)") != ours_.get(key, "(absent)") and _is_read(definitions, node, key):
                was, now = (str(inputs.get(key, "(absent)"))[:80] for inputs in (theirs_, ours_))
                return f"{node['class_type']} {node_id} {key}: {now!r} instead of {was!r}"
    return None


def _shapes(graph: Mapping[str, Any], definitions: Mapping[str, Any]) -> Counter[str]:
    """Return a digest of each output node with everything before it, without ids."""

    @cache
    def shape(node_id: str) -> str:
        node = graph[node_id]
        read = {name: value for name, value in node["inputs"].items() if _is_read(definitions, node, name)}
        inputs = {
            # In JavaScript, 1.0 is 1.
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in read.items()
        }
        links = {
            name: [shape(value[0]), value[1]]
            for name, value in read.items()
            if isinstance(value, list) and value[0] in graph
        }
        return hashlib.sha256(json.dumps([node["class_type"], inputs | links], sort_keys=True).encode()).hexdigest()

    return Counter(shape(node_id) for node_id, node in graph.items() if definitions[node["class_type"]]["output_node"])


def _is_read(definitions: Mapping[str, Any], node: Mapping[str, Any], key: str) -> bool:
    """Whether a server reads this input: other fields belong to the editor."""
    specs = definitions[node["class_type"]].get("input") or {}
    return any(key.partition(".")[0] in (specs.get(part) or {}) for part in ("required", "optional", "hidden"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
