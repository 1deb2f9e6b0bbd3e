"""What a run made: the files and texts in ComfyUI's `outputs`, whatever key a node puts them under, and what came over
the socket only."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.media_types import guess_media_type

# The type of a file that is nowhere on the server.
SENT = "socket"
_NOT_IN_NAMES = re.compile(r"[^\w-]+")
# Under these, nodes show strings; under others, they tell the editor how to draw.
_TEXT_KEYS = frozenset({"text", "texts", "string", "strings"})
_SUFFIXES = {"image/jpeg": ".jpg", "image/png": ".png", "image/webp": ".webp"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFile:
    """A file on the server. `key` is where the node put it: `images` for videos, too.

    One that was sent over the socket is not on the server: `content` has it, and its type is `socket`.
    """

    node_id: str
    filename: str
    subfolder: str = ""
    type: str = "output"
    key: str = "images"
    content: bytes | None = field(default=None, repr=False)

    @property
    def mime_type(self) -> str:
        return guess_media_type(self.filename) or "application/octet-stream"

    @property
    def is_kept(self) -> bool:
        """Whether the graph keeps it; else it is a preview."""
        return self.type in ("output", SENT)

    @property
    def query(self) -> dict[str, str]:
        """The parameters of `/view` that name this file."""
        return {"filename": self.filename, "subfolder": self.subfolder, "type": self.type}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """A run that reached its end and made something.

    `files` begin with those of the nodes that were asked for; kept files come before previews. `texts` are what nodes
    have shown, by node id. `about` is what else is to be kept with the output: of a script, its command and all that it
    saved.
    """

    prompt_id: str
    files: tuple[OutputFile, ...] = ()
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cached_nodes: frozenset[str] = frozenset()
    seconds: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.files and not self.texts

    @property
    def file(self) -> OutputFile:
        """The file that was asked for, else the first one; `LookupError` when there are only texts."""
        if not self.files:
            raise LookupError("This run made no files, only texts.")
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
) -> RunResult:
    """Collect a run's outputs, with what was sent over the socket; nodes in `wanted` go first, in that order."""
    ranks = {node_id: rank for rank, node_id in enumerate(wanted)}
    files = [*(file for node_id, output in outputs.items() for file in files_of(node_id, output)), *sent]
    # the order of the nodes in `outputs` means nothing, so a stable one is made
    files.sort(key=lambda file: (ranks.get(file.node_id, len(ranks)), not file.is_kept, _natural(file.node_id)))
    texts = {node_id: found for node_id, output in outputs.items() if (found := texts_of(output))}
    return RunResult(
        prompt_id=prompt_id, files=tuple(files), texts=texts, cached_nodes=frozenset(cached_nodes), seconds=seconds
    )


def files_of(node_id: str, output: object) -> list[OutputFile]:
    """The files in one node's output: every item with a file name, under whatever key."""
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


def sent_file(node_id: str, number: int, image: bytes, mime_type: str) -> OutputFile:
    """An image that a node has sent over the socket; the numbers of one node begin with 1."""
    name = _NOT_IN_NAMES.sub("-", node_id)
    filename = f"node-{name}_{number:05}{_SUFFIXES.get(mime_type, '.png')}"
    return OutputFile(node_id=node_id, filename=filename, type=SENT, content=image)


def texts_of(output: object) -> tuple[str, ...]:
    return tuple(item for key, item in _items(output) if key in _TEXT_KEYS and isinstance(item, str))


def _items(output: object) -> Iterator[tuple[str, Any]]:
    if isinstance(output, dict):
        for key, values in output.items():
            if isinstance(values, list):
                yield from ((key, item) for item in values)


def _natural(node_id: str) -> tuple[int, int, str]:
    return (0, int(node_id), "") if node_id.isdecimal() else (1, 0, node_id)
