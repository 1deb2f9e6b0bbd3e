"""Dependencies shared by all services."""

from dataclasses import dataclass
from datetime import timedelta

from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.domain.queue.blocks import FailoverPolicy
from comfyrelay.domain.queue.states import Stage
from comfyrelay.services.databases import Databases
from comfyrelay.services.hooks import Hooks
from comfyrelay.settings import Settings
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.notify import NotifyChannel

# Name of the object storage in file rows.
DISK = "objects"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceContext:
    settings: Settings
    databases: Databases
    objects: ObjectStore
    notify_channel: NotifyChannel
    hooks: Hooks

    @property
    def failover(self) -> FailoverPolicy:
        return FailoverPolicy(
            max_failures_before_block=self.settings.max_failures_before_block,
            cooldown=timedelta(seconds=self.settings.block_cooldown_seconds),
        )

    @property
    def default_fleet(self) -> tuple[Stage, str] | None:
        """The fleet that gets every new workflow, if any."""
        return (Stage(self.settings.stage), self.settings.default_fleet) if self.settings.default_fleet else None

    @property
    def graph_policy(self) -> GraphPolicy:
        settings = self.settings
        return GraphPolicy(
            mode=settings.graph_policy, denied=settings.graph_denied_nodes, allowed=settings.graph_allowed_nodes
        )
