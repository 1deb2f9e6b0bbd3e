"""Files and texts of a run, from ComfyUI's `outputs` and from the WebSocket."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.media_types import guess_media_type

# The `type` of a file that ComfyUI deletes when it starts.
PREVIEW_TYPE = "temp"
# The `type` of a file that exists only in memory because the node sent it over the WebSocket.
SOCKET_TYPE = "socket"
_NOT_IN_NAMES = re.compile(r"[^\w-]+")
# Nodes put displayed strings under these keys; strings under other keys are rendering options of the editor.
_TEXT_KEYS = frozenset({"text", "texts", "string", "strings"})
_SUFFIXES = {"image/jpeg": ".jpg", "image/png": ".png", "image/webp": ".webp"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFile:
    """A file on the server. `key` is the output key that the node used; some nodes list videos under `images`.

    A file that was sent over the WebSocket is not on the server: its `type` is "socket", and `content` has its bytes.
    `asset_id` is set for outputs of the Comfy API.
    """

    node_id: str
    filename: str
    subfolder: str = ""
    type: str = "output"
    key: str = "images"
    asset_id: str | None = None
    content: bytes | None = field(default=None, repr=False)

    @property
    def mime_type(self) -> str:
        return guess_media_type(self.filename) or "application/octet-stream"

    @property
    def is_saved(self) -> bool:
        """Whether the run saves this file. Other files are previews."""
        return self.type != PREVIEW_TYPE

    @property
    def query(self) -> dict[str, str]:
        """Query parameters of `/view` that name this file."""
        return {"filename": self.filename, "subfolder": self.subfolder, "type": self.type}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The outputs of a successful run.

    `files` start with the outputs of the wanted nodes; saved files come before previews. `texts` maps node ids to the
    texts these nodes displayed. `seconds` is the duration of the run. `node_seconds` maps the ids of the nodes that ran
    to their durations, as far as the server reported them. `about` is extra metadata stored with the output: for a
    script, its command and all files it saved.
    """

    prompt_id: str
    files: tuple[OutputFile, ...] = ()
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cached_nodes: frozenset[str] = frozenset()
    seconds: float = 0.0
    node_seconds: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.files and not self.texts

    @property
    def file(self) -> OutputFile:
        """The first file, from a wanted node if there is one. Raises `LookupError` if the run produced only text."""
        if not self.files:
            raise LookupError("This run produced only text, no files.")
        return self.files[0]

    def files_of(self, node_id: str) -> tuple[OutputFile, ...]:
        return tuple(file for file in self.files if file.node_id == node_id)


def result_of(
    outputs: Mapping[str, Any],
    *,
    prompt_id: str,
    sent: Iterable[OutputFile] = (),
    wanted: Iterable[str] = (),
    cached_nodes: Iterable[str] = (),
    seconds: float = 0.0,
    node_seconds: Mapping[str, float] | None = None,
) -> RunResult:
    """Collect a run's outputs, including files sent over the WebSocket. Nodes in `wanted` come first, in that order."""
    ranks = {node_id: rank for rank, node_id in enumerate(wanted)}
    files = [*(file for node_id, output in outputs.items() for file in files_of(node_id, output)), *sent]
    # The order of nodes in `outputs` is arbitrary, so sort by node id.
    files.sort(key=lambda file: (ranks.get(file.node_id, len(ranks)), not file.is_saved, _natural_key(file.node_id)))
    texts = {node_id: found for node_id, output in outputs.items() if (found := texts_of(output))}
    if not files and not texts:
        texts = _unknown_texts(outputs, ranks)
    return RunResult(
        prompt_id=prompt_id,
        files=tuple(files),
        texts=texts,
        cached_nodes=frozenset(cached_nodes),
        seconds=seconds,
        node_seconds=node_seconds or {},
    )


def files_of(node_id: str, output: object) -> list[OutputFile]:
    """Return every item in one node's output that has a file name."""
    return [
        OutputFile(
            node_id=node_id,
            filename=item["filename"],
            subfolder=str(item.get("subfolder") or ""),
            type=str(item.get("type") or "output"),
            key=key,
        )
        for key, item in _items(output)
        if isinstance(item, dict) and isinstance(item.get("filename"), str) and item.get("type") != "input"
    ]


def websocket_file(node_id: str, number: int, image: bytes, mime_type: str) -> OutputFile:
    """Wrap an image that a node sent over the WebSocket. Numbers start at 1 for each node."""
    name = _NOT_IN_NAMES.sub("-", node_id)
    filename = f"node-{name}_{number:05}{_SUFFIXES.get(mime_type, '.png')}"
    return OutputFile(node_id=node_id, filename=filename, type=SOCKET_TYPE, content=image)


def texts_of(output: object) -> tuple[str, ...]:
    return tuple(item for key, item in _items(output) if key in _TEXT_KEYS and isinstance(item, str))


def unknown_items(output: object) -> Iterator[tuple[str, Any]]:
    """Yield the items of one node's output that are neither files nor texts, without flags and empty items."""
    for key, item in _items(output):
        is_file = isinstance(item, dict) and isinstance(item.get("filename"), str)
        is_text = key in _TEXT_KEYS and isinstance(item, str)
        if not (is_file or is_text or isinstance(item, bool) or item in (None, "", [], {})):
            yield key, item


def _unknown_texts(outputs: Mapping[str, Any], wanted: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return outputs of an unknown kind as texts, unless none of the wanted nodes has one."""
    texts = {
        node_id: tuple(item if isinstance(item, str) else json.dumps(item) for _, item in found)
        for node_id, output in outputs.items()
        if (found := list(unknown_items(output)))
    }
    return texts if not wanted or texts.keys() & wanted else {}


def _items(output: object) -> Iterator[tuple[str, Any]]:
    if isinstance(output, dict):
        for key, values in output.items():
            if isinstance(values, list):
                yield from ((key, item) for item in values)
            elif isinstance(values, dict) or key in _TEXT_KEYS:
                yield key, values


def _natural_key(node_id: str) -> tuple[int, int, str]:
    return (0, int(node_id), "") if node_id.isdecimal() else (1, 0, node_id)
