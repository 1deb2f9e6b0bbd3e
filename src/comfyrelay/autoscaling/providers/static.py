"""Existing machines: their workers register, and decisions are only reported."""

from collections.abc import Sequence

from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    Observed,
    ProviderFleet,
    RefusalKind,
)
from comfyrelay.domain.autoscaling.spec import InstanceType


class StaticProvider:
    """Also for machines that another system launches and terminates after asking for the number: `whose` names it."""

    can_launch = False

    def __init__(self, whose: str = "Its workers are started by hand.") -> None:
        self._whose = whose

    async def observe(self, fleet: ProviderFleet) -> Sequence[Observed]:  # noqa: ARG002
        return ()

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:  # noqa: ARG002
        text = f"Nothing can be launched for the fleet {fleet.slug}. {self._whose}"
        return LaunchResult(refused=[LaunchRefused(kind=RefusalKind.SETUP, text=text) for _ in orders[:1]])

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        """Does nothing: their owner stops them."""

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        return fleet.spec.instance_types

    async def close(self) -> None: ...
