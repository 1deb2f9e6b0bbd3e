"""Check the media type of an output against its workflow."""

from comfyrelay.media_types import OCTET_STREAM, media_kind


def output_type(reported: str, promised: str) -> str | None:
    """Return the media type to store, or `None` if the reported type does not match the workflow's.

    Images, videos and audio may have another format, because they are decoded. Other files must match exactly: a
    browser might execute a file served with a type that the worker chose.
    """
    plain, wanted = _plain(reported), _plain(promised)
    if plain == wanted:
        return reported
    kind = media_kind(wanted)
    if kind == "file":
        return promised if wanted == OCTET_STREAM else None
    return reported if media_kind(plain) == kind else None


def _plain(mime_type: str) -> str:
    return mime_type.partition(";")[0].strip().lower()
