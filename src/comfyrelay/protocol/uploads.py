"""The user API: uploads, videos and the limits of stored files."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from comfyrelay.domain.queue.states import VideoStatus
from comfyrelay.protocol.base import AnswerBody, Page, Request, example
from comfyrelay.protocol.fields import MAX_ID, STORABLE, Id, Line, NotEmpty, OpenEnum, RowId
from comfyrelay.protocol.progress import ReportedProgress
from comfyrelay.text import one_line


class NewUpload(Request):
    model_config = example(mime_type="image/png", size=1048576, original_filename="cat.png")

    mime_type: Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$")]
    size: Annotated[int, Field(ge=1, le=MAX_ID), NotEmpty]
    original_filename: Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE), AfterValidator(one_line)]
    effect_id: RowId | None = None


class File(AnswerBody):
    id: str
    mime_type: str
    size: int | None
    original_filename: str | None
    created_at: datetime


class FileDetails(File):
    """A file with a temporary URL, its dimensions in pixels, and the duration of a video in seconds."""

    url: str
    poster_url: str | None
    width: int | None
    height: int | None
    seconds: float | None


class Upload(AnswerBody):
    """Send the bytes with PUT to `upload_url`, with exactly the headers `upload_headers`."""

    file: File
    upload_url: str
    upload_headers: dict[str, str]
    expires_at: datetime


class NewVideo(Request):
    model_config = example(original_file_id="01JA2B3C4D5E6F7G8H9J0KMNPQ", title="My cat")

    original_file_id: Id
    effect_id: RowId | None = None
    title: Line | None = None


class Video(AnswerBody):
    id: str
    title: str | None
    status: OpenEnum[VideoStatus]
    progress: ReportedProgress | None
    error: str | None
    effect_id: int | None
    job_id: str | None
    original_file_url: str | None
    processed_file_url: str | None
    created_at: datetime
    updated_at: datetime


class StoredUpload(File):
    """An upload. An upload that no job has used is deleted after a while."""

    is_used: bool


class StoredUploads(AnswerBody):
    """The number and the total size of your uploads, and their limits; null means no limit."""

    files: int
    bytes: int
    max_files: int | None
    max_bytes: int | None


class UploadPage(Page[StoredUpload]):
    """One page of your uploads, and the total size of all uploads."""

    stored: StoredUploads
