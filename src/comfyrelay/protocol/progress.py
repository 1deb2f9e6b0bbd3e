"""The progress of a job, which workers report with heartbeats."""

from typing import Any

from comfyrelay.domain.queue.progress import AFTER_RUN, BEFORE_RUN, Phase, Progress

__all__ = ["AFTER_RUN", "BEFORE_RUN", "Phase", "Progress", "ToldProgress"]

# Stored and returned as reported; `Progress.from_report` reads the known fields. A model would lose unknown fields of
# other worker versions.
ToldProgress = dict[str, Any]
