"""Build an allow list for tenant graphs from the workers' nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.workers import worker_list


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowList:
    """Node classes of workers, and the excluded ones with the reason."""

    workers: int
    allowed: Sequence[str]
    left_out: Mapping[str, str]


class Nodes:
    def __init__(self, databases: Databases, *, stage: Stage, policy: GraphPolicy) -> None:
        self._databases = databases
        self._stage = stage
        self._policy = policy

    async def allow_list(self, fleet_slug: str | None = None) -> AllowList:
        """Nodes that the workers of a fleet, or all, report, without dangerous and denied ones."""
        async with self._databases.central.read() as tx:
            if fleet_slug is not None and await catalogue.fleet(tx, stage=self._stage, slug=fleet_slug) is None:
                raise NotFound(f"There is no {self._stage} fleet {fleet_slug!r}.")
            reported = await worker_list.node_types(tx, stage=self._stage, fleet_slug=fleet_slug)
        policy = replace(self._policy, mode="deny")
        judged = {name: policy.why_not(name) for name in sorted({name for names in reported for name in names})}
        return AllowList(
            workers=len(reported),
            allowed=[name for name, why in judged.items() if why is None],
            left_out={name: why for name, why in judged.items() if why is not None},
        )
