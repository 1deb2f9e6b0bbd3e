"""Packs of custom nodes with scripts for ComfyUI's editor. Without the scripts, their nodes may not work there."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from comfyrelay.comfyui.graphs.node_definition_checks import SCRIPT_PACK

_SCRIPTS, _PACKS = "/extensions/", "custom_nodes."


def with_script_packs(object_info: Mapping[str, Any], scripts: object) -> dict[str, Any]:
    """Add the pack's name to the definition of each node whose pack has scripts. `scripts` are the paths that the
    server lists at `/extensions`; paths of an unknown shape are ignored."""
    paths = [path for path in scripts if isinstance(path, str)] if isinstance(scripts, list) else []
    names = {unquote(path[len(_SCRIPTS) :].partition("/")[0]) for path in paths if path.startswith(_SCRIPTS)}
    packs = {_key(name): name for name in names}
    return {name: _with_pack_name(definition, packs) for name, definition in object_info.items()}


def _with_pack_name(definition: Any, packs: Mapping[str, str]) -> Any:
    module = definition.get("python_module") if isinstance(definition, dict) else None
    if not isinstance(module, str) or not module.startswith(_PACKS):
        return definition
    pack = packs.get(_key(module.removeprefix(_PACKS)))
    return definition if pack is None else {**definition, SCRIPT_PACK: pack}


def _key(name: str) -> str:
    # The server lists scripts under the pack's folder or under the name in its pyproject.toml.
    return name.lower().replace("_", "-")
