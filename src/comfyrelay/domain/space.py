"""The space that a tenant takes up without paying for it: its own graphs, and its jobs without a price."""

from collections.abc import Mapping
from typing import Any

from comfyrelay.errors import WorkflowLimitReached
from comfyrelay.text import format_bytes

# Size of a job's rows with its history, without its texts.
JOB_BYTES = 4096


def space_of_job(payload: Mapping[str, Any], *, tokens: int) -> int | None:
    """Return the size of a job that counts towards the limit; `None` for a job with a price."""
    if tokens:
        return None
    return JOB_BYTES + sum(len(value) for value in payload["values"].values() if isinstance(value, str))


def check_space(taken_bytes: int, *, max_bytes: int | None) -> None:
    """Raise `WorkflowLimitReached` if a tenant would take more than its limit."""
    if max_bytes is not None and taken_bytes > max_bytes:
        raise WorkflowLimitReached(
            f"With this, your workflows and your jobs without a price would take {format_bytes(taken_bytes)}, but your "
            f"limit is {format_bytes(max_bytes)}. Delete ended jobs, and workflows that you no longer need. The graphs "
            "of deleted workflows count for up to two more hours, and as long as a job has them."
        )
