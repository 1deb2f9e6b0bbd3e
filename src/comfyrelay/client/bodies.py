"""What the API tells, by name. Plain dictionaries: their fields are the server's, and what a newer one adds is passed
on."""

from typing import Any, TypeAlias

__all__ = [
    "ENDED",
    "About",
    "Batch",
    "Effect",
    "InputValue",
    "Job",
    "LogLine",
    "Now",
    "Output",
    "Preset",
    "RunFile",
    "Unit",
    "Worker",
    "Workflow",
]

ENDED = frozenset({"completed", "failed", "canceled"})

Job: TypeAlias = dict[str, Any]
Output: TypeAlias = dict[str, Any]
Batch: TypeAlias = dict[str, Any]
LogLine: TypeAlias = dict[str, Any]
Preset: TypeAlias = dict[str, Any]
Workflow: TypeAlias = dict[str, Any]
Effect: TypeAlias = dict[str, Any]
Worker: TypeAlias = dict[str, Any]

# Only where there is a desk: its queue at a glance, a batch or single job in it, what is known of a job beside its
# state, each of its inputs, and each file that its run made.
Now: TypeAlias = dict[str, Any]
Unit: TypeAlias = dict[str, Any]
About: TypeAlias = dict[str, Any]
InputValue: TypeAlias = dict[str, Any]
RunFile: TypeAlias = dict[str, Any]
