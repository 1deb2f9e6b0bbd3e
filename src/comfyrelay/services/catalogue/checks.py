"""What a workflow must keep to: its properties, and the node that makes its output."""

from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.domain.properties import Property, check_properties
from comfyrelay.errors import InvalidInput


def read_properties(properties: Sequence[Mapping[str, Any]]) -> list[Property]:
    """A workflow's properties, checked each for itself and as a whole."""
    found = []
    for number, fields in enumerate(properties):
        try:
            found.append(Property.from_json(fields))
        except InvalidInput as error:
            raise under(f"properties.{number}", error) from error
    try:
        check_properties(found)
    except InvalidInput as error:
        raise under("properties", error) from error
    return found


def check_output_node(graph: Graph, output_node_id: str | None) -> None:
    if output_node_id is not None and output_node_id not in graph:
        raise InvalidInput(errors={"output_node_id": f"The graph has no node {output_node_id!r}."})


def under(field: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(errors={f"{field}.{key}": text for key, text in error.errors.items()})
