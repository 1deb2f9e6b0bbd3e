"""Rules of the gallery: marks, filters and file names of outputs."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.properties import Property, Role
from comfyrelay.media_types import media_kind
from comfyrelay.system.safe_names import plain_name, usable_name
from comfyrelay.text import excerpt

T = TypeVar("T")
# Limits of one request.
MAX_SELECTED = 2000
_PROMPT_LENGTH = 200
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")


class Mark(StrEnum):
    """A user's mark on an output, which has at most one."""

    STARRED = "starred"
    REJECTED = "rejected"


class MarkFilter(StrEnum):
    STARRED = "starred"
    REJECTED = "rejected"
    UNMARKED = "unmarked"


class OutputKind(StrEnum):
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    TEXT = "text"
    FILE = "file"


class GallerySort(StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"


class Grouping(StrEnum):
    DAY = "day"
    BATCH = "batch"
    WORKFLOW = "workflow"
    PROMPT = "prompt"


def output_kind(mime_type: str) -> OutputKind:
    return OutputKind.TEXT if mime_type.lower().startswith("text/") else OutputKind(media_kind(mime_type))


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTerm:
    """A search term, and the workflows whose names contain it. With `is_excluded`, the term must not occur."""

    text: str
    workflow_ids: frozenset[int] = frozenset()
    is_excluded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GalleryFilter:
    """Conditions that an output must all meet. `since` is inclusive, `until` exclusive."""

    terms: tuple[SearchTerm, ...] = ()
    workflow_ids: frozenset[int] | None = None
    batch_id: str | None = None
    kind: OutputKind | None = None
    mark: MarkFilter | None = None
    collection_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkChange:
    """New marks and a new note for outputs. `None` leaves a field unchanged; an empty note removes the note."""

    starred: bool | None = None
    rejected: bool | None = None
    note: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.starred is None and self.rejected is None and self.note is None


@dataclass(frozen=True, kw_only=True, slots=True)
class GalleryOutput:
    """An output in the gallery, which may outlive its job."""

    id: str
    tenant_id: str
    job_id: str
    number: int
    batch_id: str | None
    batch_label: str | None
    item_no: int
    workflow_id: int
    label: str | None
    mark: str | None
    note: str | None
    created_at: datetime
    path: str
    mime_type: str
    size: int | None
    width: int | None
    height: int | None
    seconds: float | None
    # File formats of the derived files, if any.
    poster: str | None
    preview: str | None
    payload: Any = field(repr=False)

    @property
    def starred(self) -> bool:
        return self.mark == Mark.STARRED

    @property
    def rejected(self) -> bool:
        return self.mark == Mark.REJECTED


class GridItem(NamedTuple):
    """The fields of an output that a grid needs; `payload` only on request."""

    id: str
    created_at: datetime
    batch_id: str | None
    workflow_id: int
    width: int | None
    height: int | None
    payload: Any = None


def prompt_placeholder(properties: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the placeholder of the workflow's main prompt, if any."""
    parsed = map(Property.from_json, properties)
    return next((property_.placeholder for property_ in parsed if property_.role is Role.PROMPT), None)


def main_prompt(payload: JobPayload, placeholder: str | None) -> str | None:
    """Return the start of the prompt as one line.

    The prompt is the value of `placeholder`, or else of the first placeholder with "prompt" but not "negative" in its
    name.
    """
    named = (
        value for key, value in payload.values.items() if "prompt" in key.lower() and "negative" not in key.lower()
    )
    texts = named if placeholder is None or placeholder not in payload.values else [payload.values[placeholder]]
    prompt = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return None if prompt is None else excerpt(prompt, length=_PROMPT_LENGTH)


def file_name(output: GalleryOutput, default_label: str) -> str:
    """Return the name of a downloaded output, such as `label-003.png`.

    An item of a batch has its number in the batch. Further outputs of the same job have a second number.
    """
    item = "" if output.batch_id is None else f"-{output.item_no + 1:03d}"
    number = "" if output.number == 1 else f"-{output.number}"
    suffix = PurePosixPath(output.path).suffix
    suffix = suffix.lower() if _SUFFIX.fullmatch(suffix) else ""
    return f"{plain_name(output.label or default_label) or 'output'}{item}{number}{suffix}"


def archive_names(items: Iterable[T], name_of: Callable[[T], str], folder_of: Callable[[T], str | None]) -> list[str]:
    """Return paths such as `batch/label-003.png`, valid on every system and unique regardless of case."""
    wanted = [PurePosixPath(plain_name(folder_of(item) or ""), usable_name(name_of(item))) for item in items]
    taken = {str(path.parent).casefold() for path in wanted}
    # The last number used for each name. Lower ones are taken.
    last_used: dict[str, int] = {}
    names = []
    for path in wanted:
        name, key = str(path), str(path).casefold()
        n = last_used.get(key, 1)
        while name.casefold() in taken:
            n += 1
            name = str(path.with_name(f"{path.stem} ({n}){path.suffix}"))
        last_used[key] = n
        taken.add(name.casefold())
        names.append(name)
    return names
