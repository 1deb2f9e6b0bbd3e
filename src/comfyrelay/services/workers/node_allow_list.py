"""Build an allow list for tenant graphs from the workers' nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import NotFound
from comfyrelay.services.context import ServiceContext
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.workers import worker_list


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowList:
    """Allowed node classes of workers, and excluded classes with the reasons."""

    workers: int
    allowed: Sequence[str]
    left_out: Mapping[str, str]


class NodeAllowLists:
    def __init__(self, context: ServiceContext) -> None:
        self._databases = context.databases
        self._stage = Stage(context.settings.stage)
        self._policy = context.graph_policy

    async def allow_list(self, fleet_slug: str | None = None) -> AllowList:
        """List the nodes that the workers of a fleet, or of all fleets, report, without dangerous and denied nodes."""
        async with self._databases.central.read() as tx:
            if fleet_slug is not None and await catalogue.fleet(tx, stage=self._stage, slug=fleet_slug) is None:
                raise NotFound(f"There is no {self._stage} fleet {fleet_slug!r}.")
            reported = await worker_list.node_types(tx, stage=self._stage, fleet_slug=fleet_slug)
        policy = replace(self._policy, mode="deny")
        refusals = {name: policy.why_not(name) for name in sorted({name for names in reported for name in names})}
        return AllowList(
            workers=len(reported),
            allowed=[name for name, why in refusals.items() if why is None],
            left_out={name: why for name, why in refusals.items() if why is not None},
        )
