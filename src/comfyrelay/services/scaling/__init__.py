"""How many machines there should be: what is seen, what is done about it, and what comes of it."""

from comfyrelay.services.fleet import Fleet
from comfyrelay.services.ground import Ground
from comfyrelay.services.scaling.durations import Durations
from comfyrelay.services.scaling.history import History
from comfyrelay.services.scaling.leadership import Leadership
from comfyrelay.services.scaling.machines import Machines
from comfyrelay.services.scaling.snapshots import Snapshots
from comfyrelay.services.scaling.views import ScalingViews

__all__ = ["Scaling"]

LEADER = "scaling"


class Scaling:
    def __init__(self, ground: Ground, fleet: Fleet) -> None:
        databases, stale_seconds = ground.databases, ground.settings.worker_stale_seconds
        # given when there may be something to decide: a job came or ended
        self.hint = ground.wakeup.subscribe()
        self.leadership = Leadership(databases, LEADER)
        self.snapshots = Snapshots(databases, stale_seconds=stale_seconds)
        self.machines = Machines(databases, self.leadership, fleet.workers, stale_seconds=stale_seconds)
        self.durations = Durations(self.leadership)
        self.history = History(databases)
        self.views = ScalingViews(databases, self.snapshots, self.leadership, fleet.fleets)
