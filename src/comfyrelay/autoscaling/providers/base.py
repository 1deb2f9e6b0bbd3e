"""The machine provider interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from comfyrelay.domain.autoscaling.machines import ProviderMachine, ProviderMachineState
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineSpec

__all__ = [
    "LaunchRefused",
    "LaunchResult",
    "MachineOrder",
    "MachineProvider",
    "ProviderFleet",
    "ProviderMachine",
    "ProviderMachineState",
    "RefusalKind",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderFleet:
    """A fleet as its provider sees it."""

    slug: str
    stage: str
    spec: MachineSpec
    max_machines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineOrder:
    """An order for one machine. Repeating a key does not order a second machine."""

    key: str
    instance_type: str | None = None


class RefusalKind(StrEnum):
    # This type is unavailable, but another type may be available.
    CAPACITY = "capacity"
    # The account has reached a quota.
    QUOTA = "quota"
    THROTTLED = "throttled"
    # Launching is impossible: missing credentials, a missing group, a broken script.
    SETUP = "setup"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRefused:
    """A refused launch. `text` is one sentence for the operator."""

    kind: RefusalKind
    text: str
    instance_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """Orders that are neither launched nor refused are pending and will be observed."""

    launched: Sequence[ProviderMachine] = ()
    refused: Sequence[LaunchRefused] = ()


class MachineProvider(Protocol):
    """Interface of machine providers. `can_launch`: it can launch and terminate machines, not only list them."""

    can_launch: bool

    async def observe(self, fleet: ProviderFleet) -> Sequence[ProviderMachine]:
        """Return every existing or starting machine of the fleet. Raise `ProviderError` if they cannot be listed."""
        ...

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        """Launch a machine for each order that has none.

        `total` is the resulting number of machines, for providers that set a number. Repeating a call changes nothing.
        Refusals are returned, not raised.
        """
        ...

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        """Terminate these machines without replacing them. Ignore missing ones."""
        ...

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        """Return the fleet's instance types with current prices, if known."""
        ...

    async def close(self) -> None: ...
