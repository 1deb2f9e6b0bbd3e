"""The machine provider interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from comfyrelay.domain.autoscaling.spec import InstanceType, MachineSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderFleet:
    """A fleet as its provider sees it."""

    slug: str
    stage: str
    spec: MachineSpec
    max_machines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineOrder:
    """An order for one machine. Repeating a key orders no second machine."""

    key: str
    instance_type: str | None = None


class ObservedState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """An existing machine. Its worker registers as `worker_id`."""

    id: str
    state: ObservedState
    # the order it came from, if the provider knows
    key: str | None = None
    worker_id: str | None = None
    instance_type: str | None = None
    price_per_hour: float | None = None
    launched_at: datetime | None = None


class RefusalKind(StrEnum):
    # this type is unavailable: another may be available
    CAPACITY = "capacity"
    # a quota of the account is reached
    QUOTA = "quota"
    THROTTLED = "throttled"
    # launching is impossible: credentials, a missing group, a broken script
    SETUP = "setup"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRefused:
    kind: RefusalKind
    # one sentence for the operator
    text: str
    instance_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """Orders that are neither launched nor refused are pending and will be observed."""

    launched: Sequence[Observed] = ()
    refused: Sequence[LaunchRefused] = ()


class MachineProvider(Protocol):
    # whether it can launch and terminate machines, or only list them
    can_launch: bool

    async def observe(self, fleet: ProviderFleet) -> Sequence[Observed]:
        """Return every machine of the fleet that exists or is starting. Raises `ProviderError` if unknown."""
        ...

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        """Launch a machine for each order that has none.

        `total` is the resulting number, for providers that set a number. Repeating a call changes nothing; refusals are
        returned, not raised.
        """
        ...

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        """Terminate these machines without replacing them; missing ones are ignored."""
        ...

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        """The fleet's instance types with current prices, if known."""
        ...

    async def close(self) -> None: ...
