"""Graphs in ComfyUI's API format: reading them, and filling in their placeholders."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from comfyrelay.errors import GraphError

# node id → {"class_type": …, "inputs": {…}, "_meta": {…}}
Graph = dict[str, Any]

# Those of a thousand nodes have about one megabyte.
MOST_BYTES = 16 * 1024 * 1024


def load_graph(source: str | bytes | Path) -> Graph:
    """Read a graph from JSON or a file and check its shape; `GraphError` says what is wrong with it."""
    return check_graph(read_json(source))


def read_json(source: str | bytes | Path) -> Any:
    """What a file or a text holds; `GraphError` where that is no JSON."""
    if isinstance(source, Path):
        source = _read(source)
    if len(source) > MOST_BYTES:
        raise GraphError(f"A workflow has at most {MOST_BYTES // 2**20} MB, and this has more.")
    return _parse(source)


def check_graph(value: object) -> Graph:
    """Check that a value has the shape of a graph, and return it."""
    if not isinstance(value, dict):
        raise GraphError("This is not a ComfyUI workflow: that would be a JSON object of nodes.")
    if isinstance(value.get("nodes"), list):
        raise GraphError(
            "This is a workflow as ComfyUI's editor saves it: it runs where the definitions of its nodes are known. "
            'Export it with "Export (API)", or convert it (`ComfyClient.load`).'
        )
    if not value:
        raise GraphError("The graph has no nodes.")
    if not any(isinstance(each, dict) and ("class_type" in each or "inputs" in each) for each in value.values()):
        raise GraphError("This is not a ComfyUI workflow: it has nothing like a node.")
    for node_id, node in value.items():
        _check_node(node_id, node)
    return value


def in_circle(graph: Graph) -> list[str]:
    """The nodes that can never run: those in a circle of links, and those behind one."""
    sources = {
        node_id: {value[0] for value in node["inputs"].values() if is_link(value) and value[0] in graph}
        for node_id, node in graph.items()
    }
    users: dict[str, list[str]] = {node_id: [] for node_id in graph}
    for node_id, needed in sources.items():
        for source in needed:
            users[source].append(node_id)
    ready = [node_id for node_id, needed in sources.items() if not needed]
    while ready:
        done = ready.pop()
        del sources[done]
        for user in users[done]:
            sources[user].discard(done)
            if not sources[user]:
                ready.append(user)
    return list(sources)


def dump_json(value: object) -> bytes:
    """A graph, or what holds one, as JSON; `GraphError` for values that JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphError(f"The graph cannot be written as JSON: {error}.") from None


def is_link(value: object) -> TypeGuard[list[Any]]:
    """Whether an input's value is another node's output, as ComfyUI tells them apart: `["12", 0]`."""
    # to ComfyUI `true` is a number, too
    return (
        isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int | float)
    )


def replace_placeholders(graph: Graph, values: Mapping[str, object]) -> Graph:
    """Return a new graph in which each placeholder in an input's text is its value.

    A text that is nothing but the placeholder becomes the value itself: a number stays a number. All are
    replaced in one pass, so a value that holds another placeholder's text (a prompt may) is left alone.
    """
    pattern = _pattern(frozenset(values))

    def fill(text: str) -> object:
        if pattern is None:
            return text
        if text and text in values:
            value = values[text]
            return value if isinstance(value, str) else deepcopy(value)
        return pattern.sub(lambda found: _as_text(values[found[0]]), text)

    return {node_id: _fill_node(node, fill) for node_id, node in graph.items()}


def placeholders_in(graph: Graph, names: Iterable[str]) -> set[str]:
    """Return those of the names that `replace_placeholders` would replace somewhere in the graph."""
    wanted = set(names)
    pattern = _pattern(frozenset(wanted))
    if pattern is None:
        return set()
    found: set[str] = set()
    for text in input_texts(graph):
        found.update([text] if text in wanted and text else pattern.findall(text))
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise GraphError(f"The graph cannot be read from {path}: {error.strerror}.") from None


def _parse(text: str | bytes) -> Any:
    try:
        # utf-8-sig: some editors on Windows put a byte order mark in front
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
        return json.loads(decoded, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise GraphError(
            "The graph is not valid JSON, for it is no text. What pictures, videos and sounds carry is read by "
            "`ComfyClient.load`."
        ) from None
    except RecursionError:
        raise GraphError("The graph is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise GraphError(f"The graph is not valid JSON: {error}.") from None


def _refuse_constant(name: str) -> None:
    # Python reads NaN and Infinity, but databases and other readers of JSON do not
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


@lru_cache(maxsize=256)
def _pattern(names: frozenset[str]) -> re.Pattern[str] | None:
    # the longest first, because the first alternative that matches wins: "{img2}" must not be read as "{img"
    ordered = sorted((name for name in names if name), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _as_text(value: object) -> str:
    if value is None:
        return ""
    # a value in the middle of a text reads as JSON would write it: true, not True
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fill_node(node: dict[str, Any], fill: Callable[[str], object]) -> dict[str, Any]:
    inputs = {
        name: list(value) if is_link(value) else _fill_texts(value, fill) for name, value in node["inputs"].items()
    }
    return {key: inputs if key == "inputs" else _copied(part) for key, part in node.items()}


def _copied(part: Any) -> Any:
    # deepcopy takes its time to find out that a text need not be copied
    return part if isinstance(part, str) else deepcopy(part)


def _fill_texts(value: Any, fill: Callable[[str], object]) -> Any:
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, dict):
        return {key: _fill_texts(each, fill) for key, each in value.items()}
    if isinstance(value, list):
        return [_fill_texts(each, fill) for each in value]
    return value


def input_texts(graph: Graph) -> Iterator[str]:
    inputs = (value for node in graph.values() for value in node["inputs"].values())
    pending = [value for value in inputs if not is_link(value)]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
