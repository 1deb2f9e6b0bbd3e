"""Files on their way to a server: under names that cannot collide or escape, and once per content."""

import asyncio
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.comfyui.graphs.graph import Graph, placeholders_in, replace_placeholders
from comfyrelay.comfyui.graphs.nodes import find_node
from comfyrelay.errors import InvalidInput, ServerRefused
from comfyrelay.http_client import Http, NotConnected

MOST_KNOWN = 10_000
_HASH = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z0-9]{1,10}")
_FOLDER = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A file for a graph: it is uploaded before the run, and the graph then names it as the server does.

    Either an input is set, that of a node by id or title, or each occurrence of `placeholder` in the inputs' texts is
    replaced. `content_hash` (SHA-256, hexadecimal), where it is known, saves reading the file. A file of one run only
    may have a `folder` of its own. A `shared` file is used by many runs: a server that has it is not sent it again,
    even if it was another process that uploaded it.
    """

    source: Path | bytes
    node: str = ""
    input: str = ""
    placeholder: str | None = None
    name: str | None = None
    content_hash: str | None = None
    folder: str | None = None
    shared: bool = False

    def check(self) -> None:
        """Raise `InvalidInput` when it does not say clearly where the file goes."""
        has_input = bool(self.node and self.input)
        if has_input == bool(self.placeholder) or bool(self.node) != bool(self.input):
            raise InvalidInput("An attachment needs either a node and its input, or a placeholder.")
        if self.folder is not None and not _FOLDER.fullmatch(self.folder):
            raise InvalidInput("The folder of an attachment is one name of letters, digits, - and _.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """A file in a server's input folder; `reference` is how a graph names it."""

    name: str
    subfolder: str = ""

    @property
    def reference(self) -> str:
        return f"{self.subfolder}/{self.name}" if self.subfolder else self.name


class Uploader:
    """Uploads to one server, and remembers what is there. `view_path` is where it can be asked for a shared file."""

    def __init__(self, http: Http, *, path: str, view_path: str | None = None) -> None:
        self._http = http
        self._path = path
        self._view_path = view_path
        self._known: dict[str, Uploaded] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        # by folder of a run, how many files were sent into it of which nothing has come back
        self._unanswered: Counter[str] = Counter()

    async def upload(
        self,
        source: Path | bytes,
        *,
        name: str | None = None,
        content_hash: str | None = None,
        folder: str | None = None,
        shared: bool = False,
    ) -> Uploaded:
        stored = await asyncio.to_thread(_stored_name, source, name, content_hash)
        subfolder = f"{UPLOAD_FOLDER}/{folder}" if folder else UPLOAD_FOLDER
        wanted = Uploaded(name=stored, subfolder=subfolder)
        # two runs with the same file: the second waits for the first one's upload
        async with self._locks.setdefault(wanted.reference, asyncio.Lock()):
            try:
                if (known := self._known.get(wanted.reference)) is not None:
                    return known
                if shared:
                    uploaded = await self._share(source, wanted)
                else:
                    with self._awaiting_answer(folder) if folder is not None else nullcontext():
                        uploaded = await self._send(source, wanted)
                if folder is None or shared:
                    self._note(wanted.reference, uploaded)
                return uploaded
            finally:
                self._locks.pop(wanted.reference, None)

    async def attach(self, graph: Graph, attachments: Iterable[Attachment]) -> Graph:
        """Upload what a run needs, and return the graph with those files in its inputs."""
        wanted = tuple(attachments)
        for each in wanted:
            each.check()
        used = placeholders_in(graph, (each.placeholder for each in wanted if each.placeholder))
        references: dict[str, str] = {}
        inputs: list[tuple[str, str, str]] = []
        for each in wanted:
            if each.placeholder is None:
                inputs.append((find_node(graph, each.node), each.input, await self._reference(each)))
            elif each.placeholder in used:
                references[each.placeholder] = await self._reference(each)
        filled = replace_placeholders(graph, references) if references else dict(graph)
        for node_id, name, reference in inputs:
            node = filled[node_id]
            filled[node_id] = {**node, "inputs": {**node["inputs"], name: reference}}
        return filled

    def forget(self) -> None:
        """Somebody may have emptied the server's folder."""
        self._known.clear()

    def take_unanswered(self, folder: str) -> bool:
        """Whether the server was sent a file for this folder and has not answered: however the call ended here, it may
        yet write it. Who asks looks after that from here on."""
        return self._unanswered.pop(folder, 0) > 0

    @contextmanager
    def _awaiting_answer(self, folder: str) -> Iterator[None]:
        self._unanswered[folder] += 1
        _keep_newest(self._unanswered)
        try:
            yield
        except (ServerRefused, NotConnected, InvalidInput):
            # it has answered, or was never sent anything
            self._answered(folder)
            raise
        self._answered(folder)

    def _answered(self, folder: str) -> None:
        if self._unanswered[folder] <= 1:
            del self._unanswered[folder]
        else:
            self._unanswered[folder] -= 1

    async def _reference(self, attachment: Attachment) -> str:
        uploaded = await self.upload(
            attachment.source,
            name=attachment.name,
            content_hash=attachment.content_hash,
            folder=attachment.folder,
            shared=attachment.shared,
        )
        return uploaded.reference

    def _note(self, reference: str, uploaded: Uploaded) -> None:
        # what is dropped is uploaded again if it is needed again
        self._known[reference] = uploaded
        _keep_newest(self._known)

    async def _share(self, source: Path | bytes, wanted: Uploaded) -> Uploaded:
        """Send a file that others use, too, unless it is there."""
        is_there = await self._has(wanted, size=await asyncio.to_thread(_size, source))
        return wanted if is_there else await self._send(source, wanted)

    async def _has(self, wanted: Uploaded, *, size: int) -> bool:
        """Whether the server has this file, and all of it: its name stands for the content, its size for the whole."""
        if self._view_path is None:
            return False
        query = {"filename": wanted.name, "subfolder": wanted.subfolder, "type": "input"}
        one_byte = {"Range": "bytes=0-0"}
        async with self._http.stream("GET", self._view_path, params=query, headers=one_byte) as response:
            total: str = response.headers.get("Content-Range", "").rpartition("/")[2]
            return total == str(size)

    async def _send(self, source: Path | bytes, wanted: Uploaded) -> Uploaded:
        with _opened(source) as file:
            answer = await self._http.json(
                "POST",
                self._path,
                files={"image": (wanted.name, file, "application/octet-stream")},
                data={"type": "input", "subfolder": wanted.subfolder},
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


def _keep_newest(known: dict[str, Any]) -> None:
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]


def _size(source: Path | bytes) -> int:
    with _opened(source) as file:
        return file.seek(0, io.SEEK_END)


def _opened(source: Path | bytes) -> io.BufferedReader | io.BytesIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        return source.open("rb")
    except OSError as error:
        raise InvalidInput(f"The file {source.name} cannot be read: {error.strerror}.") from None
