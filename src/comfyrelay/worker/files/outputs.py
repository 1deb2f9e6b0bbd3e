"""Select and save the outputs of a run."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.errors import NoOutput, OutputGone, ServerUnreachable, TooLarge
from comfyrelay.http_client import save
from comfyrelay.media_types import OCTET_STREAM
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.worker import MoreOutput, StoredOutput
from comfyrelay.text import storable
from comfyrelay.worker.lease import Lease

# Reading an output is retried after these pauses, because ComfyUI may be restarting.
PAUSES_SECONDS = (0.1, 1.0, 5.0, 15.0, 30.0)
# Maximum characters of node texts in an output's metadata.
MAX_TEXT_LENGTH = 20_000
# The extensions of outputs that the control plane accepts.
_SUFFIX = re.compile(r"\.[a-z0-9]{1,10}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectedOutput:
    """An output on this machine's disk, and the other outputs of its job."""

    path: Path
    size: int
    sha256: str
    mime_type: str
    metadata: Mapping[str, Any]
    more: tuple["CollectedOutput", ...] = ()

    @property
    def as_output(self) -> StoredOutput:
        """The output as it is reported to the control plane."""
        return checked(StoredOutput, **self._reported)

    @property
    def as_more_output(self) -> MoreOutput:
        return checked(MoreOutput, **self._reported, extension=self.extension)

    @property
    def extension(self) -> str:
        return self.path.suffix.removeprefix(".")

    @property
    def is_complete(self) -> bool:
        """Whether all files still exist."""
        return self.path.is_file() and all(output.is_complete for output in self.more)

    @property
    def _reported(self) -> dict[str, Any]:
        metadata = dict(self.metadata)
        return {"size": self.size, "mime_type": self.mime_type, "sha256": self.sha256, "metadata": metadata}

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **fields,
            "path": str(self.path),
            "metadata": dict(self.metadata),
            "more": [output.to_json() for output in self.more],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CollectedOutput":
        fields = {name: value[name] for name in cls.__dataclass_fields__}
        return cls(**fields | {"path": Path(value["path"]), "more": tuple(map(cls.from_json, value["more"]))})


def pick(result: RunResult, lease: Lease) -> OutputFile | str:
    """Choose the job's output: a file, preferably a saved file, or the text of a node if the output is text."""
    best = min(result.files, key=lambda file: _rank(file, lease), default=None)
    node_id = _text_node(result, lease)
    if node_id is not None and (best is None or not _has_extension(best, lease)):
        text = "\n".join(result.texts[node_id])
        if not text:
            raise NoOutput(f"The text of the node {node_id} is empty.")
        return text
    if best is None:
        raise NoOutput
    return best


async def collect(server: ComfyServer, result: RunResult, lease: Lease, to: Path) -> CollectedOutput:
    """Save the output as `to`, atomically."""
    picked, max_bytes = pick(result, lease), lease.job.max_output_bytes
    about: dict[str, Any] = {**result.about, "prompt_id": result.prompt_id, "seconds": result.seconds}
    mime_type = lease.payload.output_mime_type
    if texts := _displayed_texts(result):
        about["texts"] = _shorten(texts)
    if isinstance(picked, str):
        about["node_id"] = _text_node(result, lease)
        size, sha256 = await _save_text(picked, to, max_bytes)
    else:
        about |= _place_in_run(picked)
        size, sha256 = await _fetch(server, picked, to, max_bytes)
        is_expected = _has_extension(picked, lease) or _family(mime_type) == _family(picked.mime_type) == "text"
        if not is_expected and picked.mime_type != "application/octet-stream":
            mime_type = picked.mime_type
    return CollectedOutput(path=to, size=size, sha256=sha256, mime_type=mime_type, metadata=about)


def others(result: RunResult, lease: Lease) -> list[OutputFile]:
    """Return the files of a run other than the job's first output: all saved files, or else all previews. If the first
    output is a preview although other files are saved, the other previews of its node are included."""
    picked = pick(result, lease)
    has_saved = any(file.is_saved for file in result.files)
    node_id = picked.node_id if isinstance(picked, OutputFile) else None
    kept = [file for file in result.files if file.is_saved or not has_saved or file.node_id == node_id]
    # A node may list a file under several keys.
    unique = {_place(file): file for file in kept}
    if isinstance(picked, OutputFile):
        unique.pop(_place(picked), None)
    return list(unique.values())


def _place(file: OutputFile) -> tuple[str, ...]:
    return file.node_id, file.type, file.subfolder, file.filename


async def collect_more(
    server: ComfyServer, result: RunResult, lease: Lease, folder: Path
) -> tuple[tuple[CollectedOutput, ...], str | None]:
    """Save the other files in node order, then texts as files. Returns the files, and a sentence about omitted
    files."""
    outputs: list[OutputFile | tuple[str, str]] = [*others(result, lease), *_other_texts(result, lease).items()]
    max_files, max_bytes = lease.job.max_output_files or 1, lease.job.max_output_bytes
    saved: list[CollectedOutput] = []
    for output in outputs[: max_files - 1]:
        with suppress(TooLarge, OutputGone):
            other = await _collect_other(server, output, folder / f"more-{len(saved) + 2}", max_bytes)
            # Some nodes save an empty text next to each image.
            saved += [other] if other.size else []
    if len(saved) == len(outputs):
        return tuple(saved), None
    size = "" if max_bytes is None else f" of {max_bytes:,} bytes each"
    return tuple(saved), (
        f"{len(outputs) - len(saved)} of {len(outputs) + 1} files of the run are not kept: a job keeps at most "
        f"{max_files:,} readable files{size}."
    )


async def _collect_other(
    server: ComfyServer, output: OutputFile | tuple[str, str], path: Path, max_bytes: int | None
) -> CollectedOutput:
    if isinstance(output, OutputFile):
        suffix = PurePosixPath(output.filename).suffix.lower()
        path = path.with_suffix(suffix if _SUFFIX.fullmatch(suffix) else ".bin")
        size, sha256 = await _fetch(server, output, path, max_bytes)
        mime_type, metadata = output.mime_type, _place_in_run(output)
    else:
        (node_id, text), path = output, path.with_suffix(".txt")
        size, sha256 = await _save_text(text, path, max_bytes)
        mime_type, metadata = "text/plain", {"node_id": node_id}
    return CollectedOutput(path=path, size=size, sha256=sha256, mime_type=mime_type, metadata=metadata)


def _place_in_run(file: OutputFile) -> dict[str, str]:
    return {"node_id": file.node_id, "filename": file.filename, "key": file.key}


async def _fetch(server: ComfyServer, file: OutputFile, to: Path, max_bytes: int | None) -> tuple[int, str]:
    for seconds in PAUSES_SECONDS:
        with suppress(ServerUnreachable):
            return await _save_hashed(server.read(file), to, max_bytes)
        await asyncio.sleep(seconds)
    return await _save_hashed(server.read(file), to, max_bytes)


async def _save_hashed(content: AsyncIterator[bytes], to: Path, max_bytes: int | None) -> tuple[int, str]:
    digest = hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        size = 0
        async for piece in content:
            size += len(piece)
            if max_bytes is not None and size > max_bytes:
                raise TooLarge(f"The output is too large: at most {max_bytes} bytes are allowed.")
            digest.update(piece)
            yield piece

    return await save(pieces(), to), digest.hexdigest()


async def _save_text(text: str, to: Path, max_bytes: int | None) -> tuple[int, str]:
    async def content() -> AsyncIterator[bytes]:
        yield storable(text).encode()

    return await _save_hashed(content(), to, max_bytes)


def _rank(file: OutputFile, lease: Lease) -> tuple[bool, bool, bool, bool]:
    return (
        lease.payload.output_node_id is not None and file.node_id != lease.payload.output_node_id,
        not _has_extension(file, lease),
        _family(file.mime_type) != _family(lease.payload.output_mime_type),
        not file.is_saved,
    )


def _has_extension(file: OutputFile, lease: Lease) -> bool:
    return PurePosixPath(file.filename).suffix.lower() == f".{lease.payload.output_extension.lower().lstrip('.')}"


def _family(mime_type: str) -> str:
    return mime_type.partition("/")[0]


def _displayed_texts(result: RunResult) -> dict[str, str]:
    """Return the texts that nodes displayed, by node id."""
    joined = {node_id: "\n".join(texts) for node_id, texts in result.texts.items()}
    return {node_id: text for node_id, text in joined.items() if text.strip()}


def _other_texts(result: RunResult, lease: Lease) -> dict[str, str]:
    """Return the displayed texts that are in no other file, by node id."""
    in_files: set[str | None] = {*_nodes_with_text_files(result)}
    if isinstance(pick(result, lease), str):
        in_files.add(_text_node(result, lease))
    return {node_id: text for node_id, text in _displayed_texts(result).items() if node_id not in in_files}


def _shorten(texts: Mapping[str, str]) -> dict[str, str]:
    """Truncate the texts to the size that a report may have."""
    left, shortened = MAX_TEXT_LENGTH, {}
    for node_id, text in texts.items():
        if left > 0:
            shortened[node_id] = text[:left]
            left -= len(text)
    return shortened


def _text_node(result: RunResult, lease: Lease) -> str | None:
    """Return the node whose text is the job's output, if the output is text, or may have any type and there is no
    file."""
    promised = lease.payload.output_mime_type
    if not _is_text(promised) and (promised != OCTET_STREAM or result.files):
        return None
    saved_as_files = _nodes_with_text_files(result)
    nodes = [node_id for node_id in result.texts if node_id not in saved_as_files]
    wanted = lease.payload.output_node_id
    return wanted if wanted in nodes else next(iter(nodes), None)


def _nodes_with_text_files(result: RunResult) -> set[str]:
    """Return the nodes that saved their text as a file, such as `SaveText`."""
    return {file.node_id for file in result.files if _is_text(file.mime_type)}


def _is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type == "application/json"
