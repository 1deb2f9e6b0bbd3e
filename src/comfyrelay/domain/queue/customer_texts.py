"""Texts for users of an effect. They did not write its graph and do not run the server, so details about nodes, models,
databases and settings are only for operators, who find the raw text with the job."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from comfyrelay.domain.queue.progress import STARTING_AGAIN, Phase
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting

NOT_INSTALLED = "This effect is not fully installed on the server. Try another effect, or contact its operator."
INTERRUPTED = "The server was interrupted. Your file is not the cause, so try again."
FAILED = "Your result could not be made. Try again with another file or other settings."
REFUNDED = "Your tokens were returned."
NOT_AVAILABLE = "This effect cannot run right now. No tokens were charged. Try another effect, or try again later."
OUT_OF_SERVICE = "The service is interrupted. Your jobs and your tokens are safe. Try again in a minute."
_PHASES = frozenset({*Phase, STARTING_AGAIN["phase"]})

# The first pattern that matches the raw error decides.
_CAUSES = tuple(
    (re.compile(pattern, re.IGNORECASE), text)
    for pattern, text in (
        (
            r"out of memory|not enough memory|enough memory|OutOfMemory|memory of every|larger GPU",
            "There was not enough memory for this. Try a smaller image, a shorter video or lower settings.",
        ),
        (
            r"input.*(no longer exists|deleted|gone|expired|missing)|file.*(no longer exists|was deleted)",
            "Your file no longer exists. Upload it again.",
        ),
        (
            r"(image|video|picture|sound|audio) that can be read|UnidentifiedImage|not be decoded|cannot identify",
            "Your file is no image, video or audio that can be read. Save it as PNG, JPEG or MP4, and upload it again.",
        ),
        (r"even width and height", "Your video needs an even width and height. Upload it in another size."),
        (
            r"timed? ?out|took too long|too slow|time limit|limit for this job|did not answer within|no progress",
            "It took too long. Try a smaller image, a shorter video or lower settings.",
        ),
        (
            r"no output|made nothing|did not save|output is missing",
            "The effect produced no output. Try again with another file.",
        ),
        (
            r"not in list|not installed|safetensors|checkpoint|lora|ModuleNotFound|ImportError|not allowed|payment"
            r"|credit"
            r"|(model|node|workflow|graph)s?\b.*(missing|unknown|not found|not exist|no longer|cannot be|could not be)"
            r"|(no such|missing|unknown|no) (model|node|workflow|graph)",
            NOT_INSTALLED,
        ),
        (
            r"bad state|stopped responding|CUDA|interrupt|connection|unreachable|unavailable|no space|disk|attempts"
            r"|was lost|exited|shutdown|storage|database|server",
            INTERRUPTED,
        ),
    )
)
_CANNOT_RUN = "The server cannot run this job right now. The job starts automatically as soon as possible."
_WAITS = {
    Reason.SHARD_DOWN: "Part of the server is unreachable. Your job is safe, and starts automatically later.",
    Reason.NO_COMFYUI: _CANNOT_RUN,
    Reason.NO_WORKER: _CANNOT_RUN,
    Reason.MISSING: _CANNOT_RUN,
    Reason.MEMORY: _CANNOT_RUN,
    Reason.BLOCKED: _CANNOT_RUN,
    Reason.MACHINE_STARTING: "A machine is starting for it.",
    Reason.BUSY: "Other jobs run first.",
    Reason.STARTING: "It starts now.",
}


def failure_text(error: str | None, *, is_refunded: bool = False) -> str:
    """Return why a job of an effect failed, and what happens to the tokens of the user."""
    text = next((text for pattern, text in _CAUSES if pattern.search(error or "")), FAILED)
    return f"{text} {REFUNDED}" if is_refunded else text


def waiting_for_customer(waiting: Waiting) -> Waiting:
    """Return why a job of an effect waits. Other reasons come from the user, such as a pause."""
    return replace(waiting, text=_WAITS.get(waiting.reason, waiting.text))


def progress_for_customer(progress: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the progress of a job of an effect: its numbers and times, without the names of nodes and servers."""
    if progress is None:
        return None
    return {name: value for name, value in progress.items() if _is_for_customer(name, value)}


def _is_for_customer(name: str, value: Any) -> bool:
    if name == "phase":
        return value in _PHASES
    return name == "began_at" or isinstance(value, int | float)
