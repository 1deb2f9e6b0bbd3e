"""The gallery: what a user may think of an output, and what outputs are called outside of it."""

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
from comfyrelay.system.safe_names import plain, usable
from comfyrelay.text import excerpt

T = TypeVar("T")
# Of one request.
MOST_CHOSEN = 2000
MOST_WORDS = 10
_PROMPT_LENGTH = 200
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")


class Mark(StrEnum):
    """One or the other: what is starred is not rejected."""

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
class Word:
    """One of several that are searched for, and the workflows whose names have it."""

    text: str
    workflow_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class GalleryFilter:
    """Each output that fits all of it; `since` is the first moment that counts, `until` the first that does not."""

    words: tuple[Word, ...] = ()
    workflow_ids: frozenset[int] | None = None
    batch_id: str | None = None
    kind: OutputKind | None = None
    mark: MarkFilter | None = None
    collection_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkChange:
    """What is to be thought of outputs from now on; what is `None` stays. An empty note is none."""

    starred: bool | None = None
    rejected: bool | None = None
    note: str | None = None

    @property
    def is_nothing(self) -> bool:
        return self.starred is None and self.rejected is None and self.note is None


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeOutput:
    """An output, and what is known of it without its job."""

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
    # the formats of what lies beside it
    poster: str | None
    preview: str | None
    payload: Any = field(repr=False)

    @property
    def starred(self) -> bool:
        return self.mark == Mark.STARRED

    @property
    def rejected(self) -> bool:
        return self.mark == Mark.REJECTED


class Glimpse(NamedTuple):
    """As much of an output as its place in a grid needs. `payload` is there where it was asked for."""

    id: str
    created_at: datetime
    batch_id: str | None
    workflow_id: int
    batch_label: str | None
    width: int | None
    height: int | None
    payload: Any = None


def prompt_placeholder(properties: Iterable[Mapping[str, Any]]) -> str | None:
    """Of what a workflow has as its main prompt, where it says so."""
    found = (Property.from_json(each) for each in properties)
    return next((each.placeholder for each in found if each.role is Role.PROMPT), None)


def main_prompt(snapshot: JobPayload, placeholder: str | None) -> str | None:
    """The beginning of the prompt, as a line: of what the workflow has as its prompt (`placeholder`), else the first
    text that is called one, and no negative one."""
    named = (
        value for key, value in snapshot.values.items() if "prompt" in key.lower() and "negative" not in key.lower()
    )
    texts = named if placeholder is None or placeholder not in snapshot.values else [snapshot.values[placeholder]]
    found = next((each for each in texts if isinstance(each, str) and each.strip()), None)
    return None if found is None else excerpt(found, length=_PROMPT_LENGTH)


def file_name(made: MadeOutput, what: str) -> str:
    """What a file is called that leaves the gallery: `label-003.png`; `what` is its name where it has no label.

    An item has its number in the batch, and another one where its job made several."""
    number = "" if made.batch_id is None else f"-{made.item_no + 1:03d}"
    several = "" if made.number == 1 else f"-{made.number}"
    return f"{plain(made.label or what) or 'output'}{number}{several}{_suffix(made.path)}"


def archive_names(items: Iterable[T], name_of: Callable[[T], str], folder_of: Callable[[T], str | None]) -> list[str]:
    """A path for each, `batch/label-003.png`, that every system takes and that no other file or folder has, also where
    large and small letters are the same."""
    wanted = [PurePosixPath(plain(folder_of(each) or ""), usable(name_of(each))) for each in items]
    taken = {str(each.parent).casefold() for each in wanted}
    # after how many of a name it was free last: those before it are taken for good
    tried: dict[str, int] = {}
    names = []
    for each in wanted:
        name, key = str(each), str(each).casefold()
        n = tried.get(key, 1)
        while name.casefold() in taken:
            n += 1
            name = str(each.with_name(f"{each.stem} ({n}){each.suffix}"))
        tried[key] = n
        taken.add(name.casefold())
        names.append(name)
    return names


def _suffix(path: str) -> str:
    suffix = PurePosixPath(path).suffix
    return suffix.lower() if _SUFFIX.fullmatch(suffix) else ""
