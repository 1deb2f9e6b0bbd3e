"""Reduce node definitions to the expected shape.

Workers send the definitions, and every reader of a workflow reads those of all workers. Invalid parts of a broken or
hostile node are therefore dropped once, here.
"""

import math
from collections.abc import Mapping
from typing import Any

from comfyrelay.text import is_storable

# A choice with nested inputs adds six levels; ComfyUI's own nodes nest once.
MAX_DEPTH = 32
MAX_NAME_LENGTH = 200
MAX_TEXT_LENGTH = 10_000
# Lists with one value per output. Outputs are matched by position, so an invalid value drops the whole list.
_OUTPUT_LISTS: Mapping[str, type] = {"output_name": str, "output_is_list": bool}
_FLAGS = ("output_node", "deprecated", "experimental", "api_node")
# Key for the name of a node's pack if the pack has scripts for the editor. Clients add it to ComfyUI's definitions.
SCRIPT_PACK = "script_pack"
_NAMES = ("display_name", "category", "python_module", SCRIPT_PACK)
_LARGEST_NUMBER = 2**64 - 1
# Approximate memory of a value in addition to its text.
_VALUE_BYTES = 64
# Marks an invalid value, because `None` is valid.
_DROPPED = object()


def valid_definitions(definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid parts of each class, in the original order."""
    return {
        name: _class(definition)
        for name, definition in definitions.items()
        if _is_name(name) and isinstance(definition, dict)
    }


def weight(value: object) -> int:
    """Return the approximate memory usage of a value in bytes."""
    total, pending = 0, [value]
    while pending:
        part = pending.pop()
        total += _VALUE_BYTES
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, dict):
            total += sum(map(len, part)) + _VALUE_BYTES * len(part)
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return total


def _class(definition: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(inputs := definition.get("input"), dict):
        found["input"] = _inputs(inputs, MAX_DEPTH)
    if isinstance(order := definition.get("input_order"), dict):
        parts = {part: order.get(part) for part in ("required", "optional", "hidden")}
        found["input_order"] = {
            part: [name for name in names if _is_name(name)] for part, names in parts.items() if isinstance(names, list)
        }
    if isinstance(outputs := definition.get("output"), list):
        # Outputs are matched by position, so an invalid type becomes "any".
        found["output"] = [_output(output) for output in outputs]
    for name, kind in _OUTPUT_LISTS.items():
        values = definition.get(name)
        # orjson rejects other texts.
        if isinstance(values, list) and all(type(value) is kind and is_storable(str(value)) for value in values):
            found[name] = values
    found |= {name: value for name in _FLAGS if isinstance(value := definition.get(name), bool)}
    found |= {name: value for name in _NAMES if _is_name(value := definition.get(name))}
    text = definition.get("description")
    if isinstance(text, str) and len(text) <= MAX_TEXT_LENGTH and is_storable(text):
        found["description"] = text
    return found


def _output(kind: object) -> Any:
    if not isinstance(kind, str | list):
        return "*"
    found = _value(kind, MAX_DEPTH)
    return "*" if found is _DROPPED else found


def _inputs(inputs: Mapping[str, Any], depth: int) -> dict[str, Any]:
    parts = {part: inputs.get(part) for part in ("required", "optional")}
    return {
        part: {
            name: spec
            for name, given in specs.items()
            if _is_name(name) and (spec := _spec(given, depth)) is not _DROPPED
        }
        for part, specs in parts.items()
        if isinstance(specs, dict)
    }


def _spec(spec: object, depth: int) -> Any:
    """Return an input as `[type, options]`."""
    if not isinstance(spec, list) or not spec or not isinstance(spec[0], str | list):
        return _DROPPED
    kind = _value(spec[0], depth)
    if kind is _DROPPED:
        return _DROPPED
    return [kind, *(_options(options, depth) for options in spec[1:2] if isinstance(options, dict))]


def _options(options: Mapping[str, Any], depth: int) -> dict[str, Any]:
    found = _members(options, depth)
    if not isinstance(found.get("options", []), list):
        del found["options"]
    if not _is_name(found.get("display_name", "")):
        del found["display_name"]
    if not isinstance(found.get("widgetType", ""), str | list):
        del found["widgetType"]
    _shape_inputs(found, "inputs", depth)
    for choice in found.get("options", ()):
        # A choice may have nested inputs.
        if isinstance(choice, dict):
            _shape_inputs(choice, "inputs", depth)
    if isinstance(template := found.get("template"), dict):
        _shape_inputs(template, "input", depth)
    return found


def _shape_inputs(holder: dict[str, Any], key: str, depth: int) -> None:
    if isinstance(inputs := holder.pop(key, None), dict):
        holder[key] = _inputs(inputs, depth - 1)


def _value(value: object, depth: int) -> Any:
    """Return the value without invalid parts."""
    if isinstance(value, str):
        return value if is_storable(value) else _DROPPED
    if isinstance(value, dict):
        return _members(value, depth - 1) if depth > 0 else _DROPPED
    if isinstance(value, list):
        if depth <= 0:
            return _DROPPED
        return [part for given in value if (part := _value(given, depth - 1)) is not _DROPPED]
    if isinstance(value, float):
        return value if math.isfinite(value) else _DROPPED
    return value if value is None or (isinstance(value, int) and abs(value) <= _LARGEST_NUMBER) else _DROPPED


def _members(value: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {
        name: part
        for name, given in value.items()
        if is_storable(name) and (part := _value(given, depth)) is not _DROPPED
    }


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_LENGTH and is_storable(value)
