"""Upload files to a server once per content, under safe names that cannot collide."""

import asyncio
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from comfyrelay.comfyui.graphs.foreign_files import UPLOAD_FOLDER
from comfyrelay.comfyui.graphs.graph import Graph, placeholders_in, replace_placeholders
from comfyrelay.comfyui.graphs.nodes import find_node
from comfyrelay.errors import Fault, InvalidInput, ServerRefused
from comfyrelay.http_client import Http, NotConnected

MAX_REMEMBERED_UPLOADS = 10_000
# For larger files, the server's upload limit is checked first.
LARGE_BYTES = 8 * 1024**2
_HASH = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z0-9]{1,10}")
_FOLDER = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A file that is uploaded before the run, and whose name is then set in the graph.

    Set either `node` (id or title) and `input`, or `placeholder`, which is replaced everywhere in input texts. If
    `content_hash` (SHA-256, hexadecimal) is given, the file is not read to compute it. `folder` is a separate folder
    for files of a single run. A `shared` file is used by many runs: it is not sent again if the server has it, even if
    another process uploaded it.
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
        """Raise `InvalidInput` unless the target is unambiguous."""
        has_input = bool(self.node and self.input)
        if has_input == bool(self.placeholder) or bool(self.node) != bool(self.input):
            raise InvalidInput("An attachment needs either a node and its input, or a placeholder.")
        if self.folder is not None and not _FOLDER.fullmatch(self.folder):
            raise InvalidInput("An attachment folder may contain only letters, digits, - and _.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """A file in a server's input folder. In graphs, its name is `reference`."""

    name: str
    subfolder: str = ""

    @property
    def reference(self) -> str:
        return f"{self.subfolder}/{self.name}" if self.subfolder else self.name


class Uploader:
    """Upload files to one server and remember them. `field` is the form field for the file, and `view_path` the route
    that is used to check for shared files."""

    def __init__(self, http: Http, *, path: str, field: str = "image", view_path: str | None = None) -> None:
        self._http = http
        self._path = path
        self._field = field
        self._view_path = view_path
        self._known: dict[str, Uploaded] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        # Number of uploads without a response, by run folder.
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
        # If two runs use the same file, the second waits for the first upload.
        async with self._locks.setdefault(wanted.reference, asyncio.Lock()):
            try:
                if (known := self._known.get(wanted.reference)) is not None:
                    return known
                if shared:
                    uploaded = await self._send_if_missing(source, wanted)
                else:
                    with self._awaiting_answer(folder) if folder is not None else nullcontext():
                        uploaded = await self._send(source, wanted)
                if folder is None or shared:
                    # A forgotten file is uploaded again when a run needs it.
                    self._known[wanted.reference] = uploaded
                    _keep_newest(self._known)
                return uploaded
            finally:
                self._locks.pop(wanted.reference, None)

    async def attach(self, graph: Graph, attachments: Iterable[Attachment]) -> Graph:
        """Upload attachments and return the graph with their references in its inputs."""
        wanted = tuple(attachments)
        for attachment in wanted:
            attachment.check()
        used = placeholders_in(graph, (attachment.placeholder for attachment in wanted if attachment.placeholder))
        references: dict[str, object] = {}
        inputs: list[tuple[str, str, object]] = []
        for attachment in wanted:
            if attachment.placeholder is None:
                node_id = find_node(graph, attachment.node)
                inputs.append((node_id, attachment.input, await self._reference(attachment)))
            elif attachment.placeholder in used:
                references[attachment.placeholder] = await self._reference(attachment)
        filled = replace_placeholders(graph, references) if references else dict(graph)
        for node_id, name, reference in inputs:
            node = filled[node_id]
            filled[node_id] = {**node, "inputs": {**node["inputs"], name: reference}}
        return filled

    def forget_uploads(self) -> None:
        """Forget all uploads, because the server's folder may have been emptied."""
        self._known.clear()

    def pop_unanswered(self, folder: str) -> bool:
        """Return whether an upload into this folder got no response, and forget that upload."""
        return self._unanswered.pop(folder, 0) > 0

    @contextmanager
    def _awaiting_answer(self, folder: str) -> Iterator[None]:
        self._unanswered[folder] += 1
        _keep_newest(self._unanswered)
        try:
            yield
        except (ServerRefused, NotConnected, InvalidInput):
            # The server responded, or nothing was sent.
            self._record_answer(folder)
            raise
        self._record_answer(folder)

    def _record_answer(self, folder: str) -> None:
        if self._unanswered[folder] <= 1:
            del self._unanswered[folder]
        else:
            self._unanswered[folder] -= 1

    async def _reference(self, attachment: Attachment) -> object:
        """Upload a file and return the value that names it in a graph."""
        return (await self._upload_attachment(attachment)).reference

    async def _upload_attachment(self, attachment: Attachment) -> Uploaded:
        return await self.upload(
            attachment.source,
            name=attachment.name,
            content_hash=attachment.content_hash,
            folder=attachment.folder,
            shared=attachment.shared,
        )

    async def _send_if_missing(self, source: Path | bytes, wanted: Uploaded) -> Uploaded:
        """Send a shared file unless the server has it."""
        exists = await self._has(wanted, size=await asyncio.to_thread(_size, source))
        return wanted if exists else await self._send(source, wanted)

    async def _has(self, wanted: Uploaded, *, size: int) -> bool:
        """Whether the server has the complete file. The name identifies the content; the size shows partial uploads."""
        if self._view_path is None:
            return False
        query = {"filename": wanted.name, "subfolder": wanted.subfolder, "type": "input"}
        one_byte = {"Range": "bytes=0-0"}
        async with self._http.stream("GET", self._view_path, params=query, headers=one_byte) as response:
            total: str = response.headers.get("Content-Range", "").rpartition("/")[2]
            return total == str(size)

    async def _send(self, source: Path | bytes, wanted: Uploaded) -> Uploaded:
        await self._check_size(source)
        with _open(source) as file:
            answer = await self._http.json(
                "POST",
                self._path,
                files={self._field: (wanted.name, file, "application/octet-stream")},
                data=self._fields(wanted),
            )
        return self._uploaded(answer if isinstance(answer, dict) else {})

    def _fields(self, wanted: Uploaded) -> dict[str, str]:
        """Return the form fields other than the file."""
        return {"type": "input", "subfolder": wanted.subfolder}

    def _uploaded(self, answer: Mapping[str, Any]) -> Uploaded:
        """Return the file under the name that the server has chosen."""
        if not isinstance(answer.get("name"), str):
            raise ServerRefused("The server accepted the file but did not return its name.")
        return Uploaded(name=answer["name"], subfolder=str(answer.get("subfolder") or ""))

    async def _check_size(self, source: Path | bytes) -> None:
        """Reject a file that the server would reject only after the whole upload."""
        if self._view_path is None or (size := await asyncio.to_thread(_size, source)) < LARGE_BYTES:
            return
        features: dict[str, Any] = {}
        with suppress(ServerRefused):
            # Older servers do not have this route.
            features = await self._http.object("/features")
        limit = features.get("max_upload_size")
        if isinstance(limit, int) and size > limit:
            raise ServerRefused(
                f"The file has {size:,} bytes, but this ComfyUI accepts {limit:,}. "
                "Start it with a larger --max-upload-size.",
                fault=Fault.JOB,
            )


def content_hash(source: Path | bytes) -> str:
    """Return the SHA-256 of a file. Reads the whole file: call it in a thread."""
    with _open(source) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def safe_name(digest: str, name: str) -> str:
    """Build a file name from the content hash and a harmless suffix. Equal names mean equal content."""
    suffix = PurePath(name).suffix.lower()
    return f"{digest[:40]}{suffix if _SUFFIX.fullmatch(suffix) else '.bin'}"


def _stored_name(source: Path | bytes, name: str | None, digest: str | None) -> str:
    if digest is not None and not _HASH.fullmatch(digest):
        raise InvalidInput("A content hash must be a SHA-256 of 64 hexadecimal digits.")
    named = name or (source.name if isinstance(source, Path) else "")
    return safe_name(digest or content_hash(source), named)


def _keep_newest(known: dict[str, Any]) -> None:
    if len(known) > MAX_REMEMBERED_UPLOADS:
        del known[next(iter(known))]


def _size(source: Path | bytes) -> int:
    with _open(source) as file:
        return file.seek(0, io.SEEK_END)


def _open(source: Path | bytes) -> io.BufferedReader | io.BytesIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        return source.open("rb")
    except OSError as error:
        raise InvalidInput(f"The file {source.name} cannot be read: {error.strerror}.") from None
