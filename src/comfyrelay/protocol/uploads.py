"""The user API: stored uploads and their limits."""

from comfyrelay.protocol.base import AnswerBody, Page
from comfyrelay.protocol.jobs import File


class StoredUpload(File):
    """An upload. An upload that no job has used is deleted after a while."""

    is_used: bool


class StoredUploads(AnswerBody):
    """The number and the size of your uploads, and their limits; a limit of null means none."""

    files: int
    bytes: int
    max_files: int | None
    max_bytes: int | None


class UploadPage(Page[StoredUpload]):
    """One page of your uploads, and the size of all."""

    stored: StoredUploads
