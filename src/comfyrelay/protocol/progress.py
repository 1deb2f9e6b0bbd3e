"""How far a job is: a worker tells it with its heartbeats, and users and administrators are shown it."""

from typing import Any

from comfyrelay.domain.queue.progress import AFTER_RUN, BEFORE_RUN, Phase, Progress

__all__ = ["AFTER_RUN", "BEFORE_RUN", "Phase", "Progress", "ToldProgress"]

# As it is kept and answered: whatever a worker said, of which `Progress.read` finds what is known here. A model in its
# place would lose what the workers of others say beside that, or in another shape.
ToldProgress = dict[str, Any]
