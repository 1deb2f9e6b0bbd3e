"""Existing machines. Their workers register, and decisions are only reported."""

from collections.abc import Sequence

from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    ProviderFleet,
    ProviderMachine,
    RefusalKind,
)
from comfyrelay.domain.autoscaling.spec import InstanceType


class StaticProvider:
    """For machines started by hand, or launched and terminated by another system, which `explanation` names."""

    can_launch = False

    def __init__(self, explanation: str = "Start its workers by hand.") -> None:
        self._explanation = explanation

    async def observe(self, fleet: ProviderFleet) -> Sequence[ProviderMachine]:  # noqa: ARG002
        return ()

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:  # noqa: ARG002
        text = f"The fleet {fleet.slug} cannot launch machines. {self._explanation}"
        return LaunchResult(refused=[LaunchRefused(kind=RefusalKind.SETUP, text=text) for _ in orders[:1]])

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        """Do nothing, because the owner of the machines stops them."""

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        return fleet.spec.instance_types

    async def close(self) -> None: ...
