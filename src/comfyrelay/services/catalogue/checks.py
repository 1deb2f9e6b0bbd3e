"""Check the properties and the output node of a workflow."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.domain.properties import MAX_PROPERTIES_BYTES, Property, check_properties
from comfyrelay.errors import InvalidInput


def read_properties(properties: Sequence[Mapping[str, Any]]) -> list[Property]:
    """Parse the properties of a workflow, and check each property and their total size."""
    size = len(json.dumps(list(properties), default=str))
    if size > MAX_PROPERTIES_BYTES:
        limit = f"{MAX_PROPERTIES_BYTES // 1024} KiB"
        raise InvalidInput(
            errors={
                "properties": f"All properties together have {size // 1024} KiB; the limit is {limit}. "
                "Give them fewer choices or shorter defaults."
            }
        )
    found = []
    for number, fields in enumerate(properties):
        try:
            found.append(Property.from_json(fields))
        except InvalidInput as error:
            raise prefix_errors(f"properties.{number}", error) from error
    try:
        check_properties(found)
    except InvalidInput as error:
        raise prefix_errors("properties", error) from error
    return found


def check_output_node(graph: Graph, output_node_id: str | None) -> None:
    if output_node_id is not None and output_node_id not in graph:
        raise InvalidInput(errors={"output_node_id": f"The graph has no node {output_node_id!r}."})


def prefix_errors(field: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(errors={f"{field}.{key}": text for key, text in error.errors.items()})
