"""Definitions of node classes that a server no longer has and replaces in the graphs it receives.

The server lists these classes at `/node_replacements`. With a definition, they are checked, converted and shown in
forms like installed classes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from comfyrelay.comfyui.graphs.policy import REPLACED_BY
from comfyrelay.comfyui.graphs.preflight import input_specs, specs_for


def with_replaced_nodes(object_info: Mapping[str, Any], replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Add the definitions of replaced classes. Replacements of an unknown shape are ignored."""
    return {**object_info, **dict(_replaced_definitions(object_info, replacements))}


def _replaced_definitions(
    object_info: Mapping[str, Any], replacements: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, found in replacements.items():
        # The server uses the first replacement.
        first = found[0] if isinstance(found, list) and found else None
        if name in object_info or not isinstance(first, dict):
            continue
        new_name = first.get("new_node_id")
        definition = object_info.get(new_name) if isinstance(new_name, str) else None
        if isinstance(definition, dict):
            old = {"name": name, REPLACED_BY: new_name, **_inputs(definition, first), **_outputs(definition, first)}
            yield name, {**definition, **old}


def _inputs(definition: Mapping[str, Any], replacement: Mapping[str, Any]) -> dict[str, Any]:
    mapping = _entries(replacement.get("input_mapping"))
    if not mapping:
        return {}
    specs = dict(input_specs(definition))
    old = {
        str(entry["old_id"]): found[0]
        for entry in mapping
        if "old_id" in entry and (found := specs_for(specs, str(entry.get("new_id"))))
    }
    # The editor stores values by position, in this order.
    widgets = [name for name in replacement.get("old_widget_ids") or () if name in old]
    ordered = [*(name for name in old if name not in widgets), *widgets]
    return {"input": {"required": {name: old[name] for name in ordered}}, "input_order": {"required": ordered}}


def _outputs(definition: Mapping[str, Any], replacement: Mapping[str, Any]) -> dict[str, Any]:
    new = {entry.get("old_idx"): entry.get("new_idx") for entry in _entries(replacement.get("output_mapping"))}
    if not new or new == {index: index for index in range(len(definition.get("output") or ()))}:
        return {}
    indexes = [new[old] for old in sorted(index for index in new if isinstance(index, int))]
    lists = ("output", "output_name", "output_is_list")
    return {
        name: [values[index] for index in indexes if isinstance(index, int) and 0 <= index < len(values)]
        for name in lists
        if isinstance(values := definition.get(name), list)
    }


def _entries(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
