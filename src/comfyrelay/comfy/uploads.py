"""Files on their way to a server: under names that cannot collide or escape, and once per content."""

import asyncio
import hashlib
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from comfyrelay.comfy.graph import Graph
from comfyrelay.comfy.http import Http
from comfyrelay.comfy.nodes import find_node
from comfyrelay.errors import InvalidInput, ServerRefused

__all__ = ["Attachment", "Uploaded", "Uploader", "content_hash", "safe_name"]

# One folder for everything that was put there by us, so that it is found and cleaned up easily.
UPLOAD_FOLDER = "comfyrelay"
MOST_KNOWN = 10_000
_HASH = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z0-9]{1,10}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A file for an input of a graph: it is uploaded before the run, and the input is set to its name there.

    `node` is a node's id or title. `content_hash` (SHA-256, hexadecimal), where it is known, saves reading the file.
    """

    node: str
    input: str
    source: Path | bytes
    name: str | None = None
    content_hash: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """A file in a server's input folder; `reference` is how a graph names it."""

    name: str
    subfolder: str = ""

    @property
    def reference(self) -> str:
        return f"{self.subfolder}/{self.name}" if self.subfolder else self.name


class Uploader:
    """Uploads to one server, and remembers what is there."""

    def __init__(self, http: Http, *, path: str) -> None:
        self._http = http
        self._path = path
        self._known: dict[str, Uploaded] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        stored = await asyncio.to_thread(_stored_name, source, name, content_hash)
        # two runs with the same file: the second waits for the first one's upload
        async with self._locks.setdefault(stored, asyncio.Lock()):
            try:
                if stored not in self._known:
                    self._note(stored, await self._send(source, stored))
                return self._known[stored]
            finally:
                self._locks.pop(stored, None)

    async def attach(self, graph: Graph, attachments: Iterable[Attachment]) -> Graph:
        """Upload what a run needs, and return the graph with those files in its inputs."""
        filled = dict(graph)
        for each in attachments:
            node_id = find_node(filled, each.node)
            uploaded = await self.upload(each.source, name=each.name, content_hash=each.content_hash)
            node = filled[node_id]
            filled[node_id] = {**node, "inputs": {**node["inputs"], each.input: uploaded.reference}}
        return filled

    def forget(self) -> None:
        """Somebody may have emptied the server's folder."""
        self._known.clear()

    def _note(self, stored: str, uploaded: Uploaded) -> None:
        self._known[stored] = uploaded
        if len(self._known) > MOST_KNOWN:
            # the oldest: it is uploaded again if it is needed again
            del self._known[next(iter(self._known))]

    async def _send(self, source: Path | bytes, name: str) -> Uploaded:
        with _opened(source) as file:
            answer = await self._http.json(
                "POST",
                self._path,
                files={"image": (name, file, "application/octet-stream")},
                data={"type": "input", "subfolder": UPLOAD_FOLDER},
            )
        if not isinstance(answer, dict) or not isinstance(answer.get("name"), str):
            raise ServerRefused("The server took the file but did not say under which name.")
        # the server may have chosen another name
        return Uploaded(name=answer["name"], subfolder=str(answer.get("subfolder") or ""))


def content_hash(source: Path | bytes) -> str:
    """The SHA-256 of a file's content. Reads it whole: call it in a thread."""
    with _opened(source) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def safe_name(digest: str, name: str) -> str:
    """A name made of the content's hash and a harmless suffix: the same bytes get the same name, others never."""
    suffix = PurePath(name).suffix.lower()
    return f"{digest[:40]}{suffix if _SUFFIX.fullmatch(suffix) else '.bin'}"


def _stored_name(source: Path | bytes, name: str | None, digest: str | None) -> str:
    if digest is not None and not _HASH.fullmatch(digest):
        raise InvalidInput("A content hash is a SHA-256 in 64 hexadecimal digits.")
    named = name or (source.name if isinstance(source, Path) else "")
    return safe_name(digest or content_hash(source), named)


def _opened(source: Path | bytes) -> io.BufferedReader | io.BytesIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        return source.open("rb")
    except OSError as error:
        raise InvalidInput(f"The file {source.name} cannot be read: {error.strerror}.") from None
