"""What a job may bring: of the kind that its workflow promises."""

from comfyrelay.media_types import ANYTHING, media_kind


def output_type(told: str, promised: str) -> str | None:
    """The type that an output is kept under; `None` when it is not what was promised.

    A picture may be of another format, and so may a video or a sound: each is looked into. What nobody looks into is
    exactly what was promised, for a browser that is told otherwise might run it.
    """
    plain, wanted = _plain(told), _plain(promised)
    if plain == wanted:
        return told
    kind = media_kind(wanted)
    if kind == "file":
        return promised if wanted == ANYTHING else None
    return told if media_kind(plain) == kind else None


def _plain(mime_type: str) -> str:
    return mime_type.partition(";")[0].strip().lower()
