"""The user API: the gallery."""

from datetime import date, datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from comfyrelay.domain.gallery import MAX_CHOSEN
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import STORABLE, Id, Line
from comfyrelay.protocol.records import RefusedJob

Chosen = Annotated[list[Id], Field(min_length=1, max_length=MAX_CHOSEN, description="outputs")]
_ID = "0198c5a0-0000-7000-8000-000000000000"


class GalleryItem(AnswerBody):
    """One output of a job. `number` distinguishes the outputs of the same job."""

    id: str
    job_id: str
    batch_id: str | None
    batch_label: str | None
    item_no: int
    number: int
    url: str
    filename: str
    mime_type: str
    size: int | None
    width: int | None
    height: int | None
    seconds: float | None
    poster_url: str | None
    preview_url: str | None
    workflow_slug: str
    workflow_name: str
    prompt: str | None
    label: str | None
    seed: int | None
    created_at: datetime
    starred: bool
    rejected: bool
    note: str | None
    collections: list[str]


class GalleryPage(AnswerBody):
    """`total` is the number of matches on all pages."""

    items: list[GalleryItem]
    next_cursor: str | None = None
    total: int


class GalleryDay(AnswerBody):
    day: date
    count: int


class GalleryDays(AnswerBody):
    days: list[GalleryDay]


class GalleryItems(AnswerBody):
    items: list[GalleryItem]


class GalleryGroup(AnswerBody):
    """Outputs of one day, batch, workflow or prompt. `ratios` are hundredths of width by height, in the order of `ids`;
    0 if unknown."""

    key: str
    name: str
    ids: list[str]
    ratios: list[int]


class GalleryIndex(AnswerBody):
    """`total` is the number of matches; if there are very many, `groups` only has the first."""

    groups: list[GalleryGroup]
    total: int


class NewMarks(Request):
    """Absent fields stay as they are. A starred output is not rejected, and vice versa; an empty note removes the note.
    `add_to` and `remove_from` name a collection."""

    model_config = example(ids=[_ID], starred=True)

    ids: Chosen
    starred: bool | None = None
    rejected: bool | None = None
    note: Annotated[str, Field(max_length=10_000, pattern=STORABLE)] | None = None
    add_to: Id | None = None
    remove_from: Id | None = None

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.starred and self.rejected:
            raise ValueError("Send starred or rejected, not both.")
        return self


class Marked(AnswerBody):
    """`changed` is the number of outputs that exist; `missing` are the ids that do not."""

    changed: int
    missing: list[str]


class ChosenOutputs(Request):
    model_config = example(ids=[_ID])

    ids: Chosen


class DeleteOutputs(ChosenOutputs):
    keep_files: Annotated[bool, Field(description="on a desk: leave the files in the output folder")] = False


class DeletedOutputs(AnswerBody):
    """`deleted` are the deleted outputs, `jobs` the number of deleted jobs. `files` is the number of files deleted from
    a desk's output folder, `left` names the files that could not be, and why. `refused` names jobs that could not be
    deleted."""

    deleted: list[str]
    missing: list[str]
    jobs: int
    files: int
    left: list[str]
    refused: list[RefusedJob]


class Zip(AnswerBody):
    """A temporary URL of the zip, for the same user."""

    url: str


class NewCollection(Request):
    model_config = example(name="For the client")

    name: Line


class Cover(AnswerBody):
    id: str
    url: str
    poster_url: str | None
    mime_type: str


class Collection(AnswerBody):
    """`cover` is the newest of its `count` outputs."""

    id: str
    name: str
    created_at: datetime
    count: int
    cover: Cover | None


class Collections(AnswerBody):
    items: list[Collection]


class CopyOutputs(ChosenOutputs):
    """`folder` is inside the desk's output folder."""

    model_config = example(ids=[_ID], folder="best of")

    folder: Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]


class NotCopied(AnswerBody):
    id: str
    detail: str


class CopiedOutputs(AnswerBody):
    """The copies, and the outputs that were not copied."""

    folder: str
    copied: list[str]
    not_copied: list[NotCopied]
