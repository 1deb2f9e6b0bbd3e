"""The public templates of ComfyUI's editor, and a fingerprint for comparing two conversions."""

import hashlib
import importlib.metadata
import importlib.resources
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.editor.workflow import is_editor_file

PACKAGES = tuple(f"comfyui_workflow_templates_media_{kind}" for kind in ("api", "image", "other", "video"))
HERE = Path(__file__).parent
# For each template: the editor's export, or the nodes that the exporting server lacked. See `python -m
# tests.unit.comfyui.editor --help` to recreate the file.
EXPORTS = HERE / "exports.json"
# The part of that server's node definitions that affects the conversion of workflows.
DEFINITIONS = HERE / "definitions.json"

_OPTIONS = ("control_after_generate", "default", "dynamicPrompts", "forceInput", "multiline", "multiselect", "template")


def versions() -> dict[str, str]:
    return {package: importlib.metadata.version(package.replace("_", "-")) for package in PACKAGES}


def templates() -> Iterator[tuple[str, dict[str, Any]]]:
    for package in PACKAGES:
        for file in sorted((importlib.resources.files(package) / "templates").iterdir(), key=lambda file: file.name):
            if file.name.endswith(".json") and is_editor_file(value := json.loads(file.read_text(encoding="utf-8"))):
                yield file.name, value


def load_template(name: str) -> dict[str, Any]:
    [file] = [
        file for package in PACKAGES if (file := importlib.resources.files(package) / "templates" / name).is_file()
    ]
    workflow: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return workflow


def fingerprint(graph: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return a hash of what a server reads from a graph. Fields without a definition are for the editor."""
    nodes = {node_id: _normal_node(node, definitions) for node_id, node in graph.items()}
    return hashlib.sha256(json.dumps(nodes, sort_keys=True).encode()).hexdigest()


def reduced(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node definition without descriptions, and with only the first choice."""
    specs = definition.get("input") or {}
    return {
        "input": {
            part: {name: _reduced_spec(spec) for name, spec in specs[part].items()}
            for part in ("required", "optional")
            if specs.get(part)
        },
        "input_order": {part: names for part, names in definition["input_order"].items() if part != "hidden"},
        "output": [kind if isinstance(kind, str) else "COMBO" for kind in definition["output"]],
    }


def _normal_node(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    parts = definitions[node["class_type"]]["input"]
    known = {*parts.get("required", ()), *parts.get("optional", ())}
    inputs = {
        name: value for name, value in node["inputs"].items() if name in known or "." in name or isinstance(value, list)
    }
    return {"class_type": node["class_type"], "inputs": inputs}


def _reduced_spec(spec: list[Any]) -> list[Any]:
    options = spec[1] if len(spec) > 1 else {}
    selected = {name: options[name] for name in _OPTIONS if name in options}
    if isinstance(spec[0], list):
        return [spec[0][:1], selected]
    if spec[0] == "COMFY_DYNAMICCOMBO_V3":
        selected["options"] = [
            {
                "key": option["key"],
                "inputs": {
                    part: {name: _reduced_spec(inner) for name, inner in inputs.items()}
                    for part, inputs in option["inputs"].items()
                },
            }
            for option in options["options"]
        ]
    elif spec[0] == "COMBO":
        selected["options"] = options.get("options", [])[:1]
    return [spec[0], selected]
