"""The user API: the gallery."""

from datetime import date, datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from comfyrelay.domain.gallery import MAX_SELECTED
from comfyrelay.protocol.base import AnswerBody, Page, Request, example
from comfyrelay.protocol.fields import STORABLE, Id, Line
from comfyrelay.protocol.records import RefusedJob

OutputIds = Annotated[list[Id], Field(min_length=1, max_length=MAX_SELECTED, description="ids of outputs")]
_ID = "0198c5a0-0000-7000-8000-000000000000"


class GalleryItem(AnswerBody):
    """An output of a job.

    `item_no` is the position of the job in its batch, and `number` the position of the output among the outputs of the
    job. `size` is in bytes, `seconds` is the duration of a video. `url`, `poster_url` (a still image) and `preview_url`
    (a short clip of a video) are temporary. With `has_graph`, you may open its workflow. `collections` are ids.
    """

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
    has_graph: bool
    prompt: str | None
    label: str | None
    seed: int | None
    created_at: datetime
    starred: bool
    rejected: bool
    note: str | None
    collections: list[str]


class GalleryPage(Page[GalleryItem]):
    """One page of the gallery. `total` is the number of matching outputs on all pages."""

    total: int


class GalleryDay(AnswerBody):
    """A day with outputs, and their number."""

    day: date
    count: int


class GalleryDays(AnswerBody):
    days: list[GalleryDay]


class GalleryGroup(AnswerBody):
    """The outputs of one day, batch, workflow or prompt. `ids` are the outputs, and `ratios` their aspect ratios in the
    same order: 100 times the width divided by the height, or 0 if unknown."""

    key: str
    name: str
    ids: list[str]
    ratios: list[int]


class GalleryIndex(AnswerBody):
    """All matching outputs in groups. `total` is their number. If it is higher than the number of listed ids, `groups`
    contains only the first outputs."""

    groups: list[GalleryGroup]
    total: int


class NewMarks(Request):
    """Changes to outputs. Absent fields keep their value. Starring an output ends its rejection, and rejecting it
    removes its star. An empty `note` removes the note. `add_to` and `remove_from` are ids of collections."""

    model_config = example(ids=[_ID], starred=True)

    ids: OutputIds
    starred: bool | None = None
    rejected: bool | None = None
    note: Annotated[str, Field(max_length=10_000, pattern=STORABLE)] | None = None
    add_to: Id | None = None
    remove_from: Id | None = None

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.starred and self.rejected:
            raise ValueError("Send `starred` or `rejected`, not both.")
        return self


class MarksChanged(AnswerBody):
    """`changed` is the number of changed outputs. `missing` are the requested ids that do not exist."""

    changed: int
    missing: list[str]


class ChosenOutputs(Request):
    model_config = example(ids=[_ID])

    ids: OutputIds


class DeleteOutputs(ChosenOutputs):
    keep_files: Annotated[bool, Field(description="keep the files in the output folder of the desk")] = False


class DeletedOutputs(AnswerBody):
    """The result of a deletion.

    `deleted` are the ids of the deleted outputs, `missing` the requested ids that do not exist, and `jobs` is the
    number of deleted jobs: a job is deleted with its last output. `files` is the number of files deleted from the
    output folder of the desk. `not_deleted` contains a sentence for each file that could not be deleted. `refused` are
    the jobs whose outputs could not be deleted.
    """

    deleted: list[str]
    missing: list[str]
    jobs: int
    files: int
    not_deleted: list[str]
    refused: list[RefusedJob]


class Zip(AnswerBody):
    """A temporary URL of a zip archive. Only the same user can download it."""

    url: str


class NewCollection(Request):
    model_config = example(name="For the client")

    name: Line


class Cover(AnswerBody):
    """The output that represents a collection. `poster_url` is a still image."""

    id: str
    url: str
    poster_url: str | None
    mime_type: str


class Collection(AnswerBody):
    """A collection of `count` outputs. `cover` is the newest output with a poster, or the newest of all."""

    id: str
    name: str
    created_at: datetime
    count: int
    cover: Cover | None


class CopyOutputs(ChosenOutputs):
    """Copy outputs to `folder`, a subfolder of the desk's output folder."""

    model_config = example(ids=[_ID], folder="best of")

    folder: Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]


class NotCopied(AnswerBody):
    """An output that was not copied. `detail` is the reason."""

    id: str
    detail: str


class CopiedOutputs(AnswerBody):
    """`folder` is the absolute path of the target folder, and `copied` are the names of the new files."""

    folder: str
    copied: list[str]
    not_copied: list[NotCopied]
