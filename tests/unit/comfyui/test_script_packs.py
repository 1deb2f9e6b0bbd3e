"""Nodes name their pack if the pack has scripts for the editor."""

from typing import Any

import pytest

from comfyrelay.comfyui.client.script_packs import with_script_packs
from comfyrelay.comfyui.graphs.node_definitions import pack, unpack

NODES: dict[str, Any] = {
    "Plain": {"python_module": "custom_nodes.plain"},
    "Drawn": {"python_module": "custom_nodes.Drawn_Pack"},
    "Own": {"python_module": "nodes"},
    "Odd": None,
}


@pytest.mark.parametrize("name", ["Drawn_Pack", "drawn-pack"])
def test_nodes_of_a_pack_with_scripts_name_it(name: str) -> None:
    scripts = ["/extensions/core/a.js", f"/extensions/{name}/lib/a.js", "/extensions/nodes/a.js"]
    found = with_script_packs(NODES, scripts)
    assert found == {**NODES, "Drawn": {**NODES["Drawn"], "script_pack": name}}
    packed = pack({name: definition for name, definition in found.items() if definition is not None})
    assert unpack(packed.data, sha256=packed.sha256)["Drawn"]["script_pack"] == name


def test_quoted_names_are_decoded() -> None:
    nodes = {"A": {"python_module": "custom_nodes.my pack"}}
    found = with_script_packs(nodes, ["/extensions/my%20pack/a.js"])
    assert found["A"]["script_pack"] == "my pack"


@pytest.mark.parametrize("scripts", [None, {}, "x", [1, None, "", "/", "/extensions/"]])
def test_malformed_lists_of_scripts_change_nothing(scripts: object) -> None:
    assert with_script_packs(NODES, scripts) == NODES
