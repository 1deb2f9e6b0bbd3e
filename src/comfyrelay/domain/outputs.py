"""Media types of outputs, and their copies in the output folder of a desk.

A browser might execute a file served with a type that the worker chose.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.media_types import OCTET_STREAM, guess_media_type, media_kind

# Upper limit of `max_output_files`.
MAX_OUTPUT_FILES = 10_000
# Detail of an attempt: the names of the copies, in the order of the outputs. A name is empty if its output was deleted.
COPIES = "files"
# Detail of an attempt: the output folder of its copies, which may be relative to the data folder.
COPIES_ROOT = "files_root"
# Text types in which a browser runs scripts.
_EXECUTED = {"text/html", "text/javascript", "text/xml"}


def output_type(reported: str, promised: str) -> str | None:
    """Return the media type to store, or `None` if the reported type does not match the workflow's.

    Images, videos and audio may have another format, because they are decoded. Other files must match exactly.
    """
    plain, wanted = _plain(reported), _plain(promised)
    if plain == wanted:
        return reported
    kind = media_kind(wanted)
    if kind == "file":
        return promised if wanted == OCTET_STREAM else None
    return reported if media_kind(plain) == kind else None


def type_of_extension(extension: str) -> str:
    """Return the media type to store for an output that no workflow promised: only media, plain text and JSON."""
    guessed = guess_media_type(f"output.{extension}") or OCTET_STREAM
    if guessed.startswith("text/") and guessed not in _EXECUTED:
        return "text/plain"
    return guessed if media_kind(guessed) != "file" or guessed == "application/json" else OCTET_STREAM


def _plain(mime_type: str) -> str:
    return mime_type.partition(";")[0].strip().lower()


def copies_in(about: Mapping[str, Any] | None) -> dict[int, str]:
    """Return the names of an attempt's copies by output number, without copies of deleted outputs."""
    return {number: name for number, name in enumerate((about or {}).get(COPIES, ()), start=1) if name}


def split_copies(
    attempts: Iterable[Attempt], numbers: Mapping[str, Collection[int]]
) -> tuple[list[Attempt], list[Attempt]]:
    """Return the attempts without the copies of some outputs, and with only these. `numbers` has the outputs by job."""
    kept, removed = [], []
    for attempt in attempts:
        about, chosen = attempt.about or {}, numbers.get(attempt.job_id, ())
        names = list(enumerate(about.get(COPIES, ()), start=1))
        if any(number in chosen for number, _ in names):
            without, only = (
                [name if (number in chosen) is wanted else "" for number, name in names] for wanted in (False, True)
            )
            kept.append(replace(attempt, about={**about, COPIES: without}))
            removed.append(replace(attempt, about={**about, COPIES: only}))
    return kept, removed
