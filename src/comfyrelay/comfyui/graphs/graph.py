"""Read graphs in ComfyUI's API format and fill in their placeholders."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeGuard

from comfyrelay.comfyui.graphs.placeholders import placeholders_of
from comfyrelay.errors import GraphError

# Nodes by id: {"class_type": …, "inputs": {…}, "_meta": {…}}.
Graph = dict[str, Any]

# A graph, its JSON text, or the path of a JSON file.
GraphSource = Graph | str | bytes | Path

# A graph of a thousand nodes has about 1 MB.
MAX_BYTES = 16 * 1024**2


def load_graph(source: str | bytes | Path) -> Graph:
    """Read a graph from JSON or a file and check its shape. Raises `GraphError` if it is invalid."""
    return check_graph(read_json(source))


def read_graph(source: GraphSource) -> Graph:
    """Return a graph given as an object, as JSON text or as the path of a JSON file, and check its shape."""
    if not isinstance(source, str | bytes | Path):
        return check_graph(source)
    if isinstance(source, str) and not source.lstrip("\ufeff \t\r\n").startswith("{"):
        raise GraphError("This text is not the JSON of a graph. To read a file, pass a `pathlib.Path`.")
    return load_graph(source)


def read_json(source: str | bytes | Path) -> Any:
    """Parse JSON from a text or a file. Raises `GraphError` if it is invalid."""
    if isinstance(source, Path):
        path = source
        try:
            with path.open("rb") as file:
                source = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise GraphError(f"The graph cannot be read from {path}: {error.strerror}.") from None
    if len(source) > MAX_BYTES:
        raise GraphError(f"The workflow is larger than {MAX_BYTES // 2**20} MB.")
    return _parse(source)


def check_graph(value: object) -> Graph:
    """Check that a value has the shape of a graph, and return it."""
    if not isinstance(value, dict):
        raise GraphError("This is not a ComfyUI workflow: a workflow is a JSON object of nodes.")
    if isinstance(value.get("nodes"), list):
        raise GraphError(
            "This workflow is in the format of ComfyUI's editor, which needs the node definitions of a server. "
            'Export it with "Export (API)", or convert it (`ComfyClient.load`).'
        )
    if not value:
        raise GraphError("The graph has no nodes.")
    if not any(isinstance(node, dict) and ("class_type" in node or "inputs" in node) for node in value.values()):
        raise GraphError("This is not a ComfyUI workflow: it contains no node.")
    for node_id, node in value.items():
        _check_node(node_id, node)
    return value


def dump_json(value: object) -> bytes:
    """Encode a graph, or an object that contains a graph, as JSON. Raises `GraphError` if JSON cannot represent it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphError(f"The graph cannot be written as JSON: {error}.") from None


def is_link(value: object) -> TypeGuard[list[Any]]:
    """Whether an input's value is a link to another node's output, such as `["12", 0]`. Uses ComfyUI's rule."""
    # ComfyUI also accepts `true` as a number.
    return (
        isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int | float)
    )


def replace_placeholders(graph: Graph, values: Mapping[str, object]) -> Graph:
    """Return a new graph with each placeholder in the inputs replaced by its value.

    A text that is exactly one placeholder becomes the value itself, so a number remains a number. All placeholders are
    replaced in one pass, so placeholder text within a value, such as a prompt, is not changed.
    """
    fill = _filler(values)
    return {node_id: _fill_node(node, fill) for node_id, node in graph.items()}


def fill_texts(value: Any, values: Mapping[str, object]) -> Any:
    """Return JSON of any shape with the placeholders in its texts replaced, like `replace_placeholders`."""
    return _fill_texts(value, _filler(values))


def _filler(values: Mapping[str, object]) -> Callable[[str], object]:
    placeholders = placeholders_of(values)

    def fill(text: str) -> object:
        if text and text in values:
            value = values[text]
            return value if isinstance(value, str) else deepcopy(value)
        return placeholders.replace(text, lambda name: _as_text(values[name]))

    return fill


def placeholders_in(graph: Graph, names: Iterable[str]) -> set[str]:
    """Return the names that `replace_placeholders` would replace in the graph."""
    return placeholders_of(names).found_in(input_texts(graph))


def _parse(text: str | bytes) -> Any:
    try:
        # utf-8-sig: some Windows editors write a byte order mark.
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
        if not decoded.strip():
            raise GraphError("The file is empty: it contains no workflow.")
        return json.loads(decoded, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise GraphError(
            "The graph is not valid JSON: it is not a text. Use `ComfyClient.load` to read images, videos and audio."
        ) from None
    except RecursionError:
        raise GraphError("The graph is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise GraphError(f"The graph is not valid JSON: {error}.") from None


def _refuse_constant(name: str) -> None:
    # Python reads NaN and Infinity, but databases and other JSON parsers do not.
    raise ValueError(f"{name} is not a JSON number")


def _check_node(node_id: str, node: object) -> None:
    match node:
        case {"class_type": str() as class_type, "inputs": dict()} if class_type:
            return
        case {"class_type": str() as class_type} if class_type:
            raise GraphError(f'Node "{node_id}" has no "inputs" object.')
        case dict():
            raise GraphError(f'Node "{node_id}" has no "class_type".')
        case _:
            raise GraphError(f'Node "{node_id}" is not a JSON object.')


def _as_text(value: object) -> str:
    if value is None:
        return ""
    # Within a text, write values as in JSON: true, not True.
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fill_node(node: dict[str, Any], fill: Callable[[str], object]) -> dict[str, Any]:
    inputs = {
        name: list(value) if is_link(value) else _fill_texts(value, fill) for name, value in node["inputs"].items()
    }
    # Texts are not copied, because deepcopy is slow.
    return {
        key: inputs if key == "inputs" else part if isinstance(part, str) else deepcopy(part)
        for key, part in node.items()
    }


def _fill_texts(value: Any, fill: Callable[[str], object]) -> Any:
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, dict):
        return {key: _fill_texts(part, fill) for key, part in value.items()}
    if isinstance(value, list):
        return [_fill_texts(part, fill) for part in value]
    return value


def input_texts(graph: Graph) -> Iterator[str]:
    """Yield every text in the inputs of a graph."""
    for node in graph.values():
        for value in node["inputs"].values():
            yield from texts_in(value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in an input's value, at any depth. A link does not count as text."""
    pending = [] if is_link(value) else [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
