"""Progress of a job, which workers report with heartbeats."""

from typing import Any

from comfyrelay.domain.queue.progress import AFTER_RUN, BEFORE_RUN, Phase, Progress

__all__ = ["AFTER_RUN", "BEFORE_RUN", "Phase", "Progress", "ReportedProgress"]

# Progress is stored and returned as reported: a model would lose the fields of newer workers. `Progress.from_report`
# reads the known fields.
ReportedProgress = dict[str, Any]
