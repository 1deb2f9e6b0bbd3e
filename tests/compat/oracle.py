"""`python -m tests.compat.oracle`: compare conversions of template files with the exports of a real editor.

It starts a version of ComfyUI, opens an editor in Chromium, loads every template of a package and every subgraph
blueprint of the server, and compares the graph that the editor would send with the one that `convert_workflow` makes.
Editor and templates are those of the version or given ones, which pip fetches. `--write` puts the results of all
editors so far into the documentation.
"""

import argparse
import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from playwright.async_api import Page

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.comfyui.graphs.preflight import input_specs
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.python import python_in
from comfyrelay.comfyui.processes.supervisor import ProcessState, Supervisor
from comfyrelay.comfyui.versions import version_key
from comfyrelay.errors import ComfyRelayError, NotInstalled
from comfyrelay.http_client import http_client, object_in
from tests.compat.__main__ import FOLDER, replace_part
from tests.support.chromium import open_chromium
from tests.unit.comfyui.editor.__main__ import EXPORT, READY

START_SECONDS = 900.0
LOAD_MS = 60_000


_PARTS = ("required", "optional", "hidden")
_OF_NEWER_SERVERS = ("missing nodes", "unknown option")
# The editor writes this to its console when it drops a link of a file that it loads.
_LOST_LINK = "Failed to realign input link slots"


class Comparison(NamedTuple):
    template: str
    # "equal", "different", "refused" by our conversion, "missing nodes", "unknown option", or "failed" in the editor.
    result: str
    detail: str

    @property
    def reason(self) -> str:
        """The result and its detail, as a cell of a table."""
        return f"{self.result}: {self.detail}".replace("|", "\\|")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", nargs="?", default="0.28.0", help="ComfyUI, a folder below --folder; %(default)s")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the versions; default: %(default)s")
    parser.add_argument("--frontend", help="version of another editor package")
    parser.add_argument("--templates", help="version of another template package")
    parser.add_argument("--only", help="only templates whose name contains this text; nothing is stored")
    parser.add_argument("--at-least", type=float, default=99.0, help="percentage that must be equal; %(default)s")
    parser.add_argument("--write", action="store_true", help="write all stored results into the documentation")
    options = parser.parse_args(words)
    install: Path = options.folder / options.version
    editor = _fetched(options, "comfyui-frontend-package", options.frontend)
    templates = _fetched(options, "comfyui-workflow-templates", options.templates)
    found = asyncio.run(_compare_all(install, editor, templates or _packages_of(install), only=options.only))
    outcome = Outcome(
        editor=options.frontend or _installed(install, "comfyui-frontend-package"),
        templates=options.templates or _installed(install, "comfyui-workflow-templates"),
        comfyui=options.version,
        found=found,
    )
    sys.stdout.write(f"{outcome.row}\n")
    if not options.only:
        outcome.store(options.folder)
    if options.write:
        replace_part("oracle", _render(options.folder))
    return int(outcome.share < options.at_least)


@dataclass(frozen=True)
class Outcome:
    """The results of one editor."""

    editor: str
    templates: str
    comfyui: str
    found: Sequence[Comparison]

    @property
    def compared(self) -> list[Comparison]:
        """Files that the editor exports, whose nodes the server has with all options that they choose."""
        without = (*_OF_NEWER_SERVERS, "failed")
        return [comparison for comparison in self.found if comparison.result not in without]

    @property
    def listed(self) -> list[Comparison]:
        """Files that are not equal, and files that the editor itself does not export."""
        return [each for each in self.found if each.result == "failed" or each in self.unequal]

    @property
    def unequal(self) -> list[Comparison]:
        return [comparison for comparison in self.compared if comparison.result != "equal"]

    @property
    def share(self) -> float:
        return 100 * (1 - len(self.unequal) / len(self.compared)) if self.compared else 0.0

    @property
    def row(self) -> str:
        numbers = f"{len(self.found)} | {len(self.compared)} | {len(self.compared) - len(self.unequal)}"
        return f"| {self.editor} | {self.comfyui} | {self.templates} | {numbers} | {self.share:.1f} % |"

    def store(self, folder: Path) -> None:
        (folder / f"oracle-{self.editor}.json").write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, file: Path) -> "Outcome":
        stored = json.loads(file.read_text("utf-8"))
        return cls(**{**stored, "found": [Comparison(*comparison) for comparison in stored["found"]]})


def _render(folder: Path) -> str:
    """Return the results of all editors, and each template that is not equal with the reason."""
    outcomes = [Outcome.load(file) for file in folder.glob("oracle-*.json")]
    outcomes.sort(key=lambda outcome: version_key(outcome.editor) or ())
    head = "| Editor | ComfyUI | Templates | Files | Compared | Equal | Share |\n|---|---|---|---|---|---|---|\n"
    rows = [
        f"| {outcome.editor} | {comparison.template} | {comparison.reason} |"
        for outcome in outcomes
        for comparison in outcome.listed
    ]
    rest = ["", "| Editor | Not equal | Reason |", "|---|---|---|", *rows] if rows else []
    return head + "\n".join([*(outcome.row for outcome in outcomes), *rest, ""])


def _fetched(options: argparse.Namespace, package: str, version: str | None) -> Path | None:
    """Return the folder of a package in a given version, which pip fetches once."""
    if version is None:
        return None
    folder: Path = options.folder / f"{package}-{version}"
    if not folder.exists():
        command = ["-m", "pip", "install", "--quiet", "--target", str(folder), f"{package}=={version}"]
        subprocess.run([sys.executable, *command], check=True)
    return folder


def _installed(install: Path, package: str) -> str:
    """Return the version of a package in the environment of a ComfyUI."""
    python = python_in(install / ".venv")
    code = f"import importlib.metadata as found; print(found.version({package!r}))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


async def _compare_all(install: Path, editor: Path | None, templates: Path, *, only: str | None) -> list[Comparison]:
    static = (
        [] if editor is None else ["--front-end-root", str((editor / "comfyui_frontend_package/static").absolute())]
    )
    arguments = ("--cpu", *static)
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
                console: list[str] = []
                page.on("console", lambda message: console.append(message.text))
                await page.goto(url)
                await page.wait_for_function(READY, timeout=1000 * START_SECONDS)
                found = []
                for name, workflow in [*_templates(templates), *await _blueprints(url)]:
                    if not only or only in name:
                        found.append(await _compare(page, console, name, workflow, definitions))
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


async def _blueprints(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the subgraph blueprints of a server. Versions before 0.28 have none."""
    async with http_client(base_url=url, timeout=START_SECONDS) as http:
        listed = await http.get("/global_subgraphs")
        entries = sorted(object_in(listed).items(), key=lambda entry: str(entry[1]["name"]))
        loaded = [(entry["name"], object_in(await http.get(f"/global_subgraphs/{key}"))) for key, entry in entries]
        return [(f"blueprint {name}", json.loads(found["data"])) for name, found in loaded]


async def _compare(
    page: Page, console: list[str], name: str, workflow: dict[str, Any], definitions: Mapping[str, Any]
) -> Comparison:
    try:
        exported = await _export(page, console, workflow)
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
    if option := _unknown_option(converted, definitions):
        return Comparison(name, "unknown option", option)
    difference = first_difference(exported, converted, definitions)
    return Comparison(name, "equal" if difference is None else "different", difference or "")


async def _export(page: Page, console: list[str], workflow: dict[str, Any]) -> dict[str, Any]:
    """Return the graph that the editor would send. `console` collects what it writes there."""
    console.clear()
    async with asyncio.timeout(LOAD_MS / 1000):
        exported: dict[str, Any] = await page.evaluate(EXPORT, workflow)
    if any(_LOST_LINK in text for text in console):
        raise LookupError("The editor drops a link of the file.")
    return exported


def _unknown_option(graph: Mapping[str, Any], definitions: Mapping[str, Any]) -> str | None:
    """Return an option that a newer version of a node has. Its inputs are unknown here, so the server refuses it."""
    for node_id, node in graph.items():
        for name, spec in input_specs(definitions[node["class_type"]]):
            value = node["inputs"].get(name)
            is_choice = spec[0] == "COMFY_DYNAMICCOMBO_V3" and isinstance(value, str)
            if is_choice and value not in [option["key"] for option in spec[1]["options"]]:
                return f"{node['class_type']} {node_id} {name}: {value}"
    return None


def first_difference(
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
            # The editor sends null for fields of blueprints without a value, which a server refuses. We send defaults.
            is_unset = key in theirs_ and theirs_[key] is None
            differs = not is_unset and theirs_.get(key, "(absent)") != ours_.get(key, "(absent)")
            if differs and _is_read(definitions, node, key):
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
    """Whether a server reads this input: other fields belong to the editor. The view of a 3D model depends on the
    browser, and nodes work without it."""
    specs = definitions[node["class_type"]].get("input") or {}
    name = key.partition(".")[0]
    return name != "viewport_state" and any(name in (specs.get(part) or {}) for part in _PARTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
