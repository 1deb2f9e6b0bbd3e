"""What the scaling loop asks of whoever makes machines."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from comfyrelay.domain.autoscaling.spec import InstanceType, MachineSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderFleet:
    """A fleet as its provider knows it."""

    slug: str
    stage: str
    spec: MachineSpec
    max_machines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineOrder:
    """One machine that is wanted. The same key again is the same machine: whoever repeats an order gets no second."""

    key: str
    instance_type: str | None = None


class ObservedState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """A machine that exists. One that is gone is not observed. Its worker registers as `worker_id`."""

    id: str
    state: ObservedState
    # the order it came from, where the provider can tell
    key: str | None = None
    worker_id: str | None = None
    instance_type: str | None = None
    price_per_hour: float | None = None
    launched_at: datetime | None = None


class RefusalKind(StrEnum):
    # none of this type to be had now: another type may be
    CAPACITY = "capacity"
    # the account may have no more
    QUOTA = "quota"
    THROTTLED = "throttled"
    # nobody may launch here as things are: credentials, a missing group, a broken script
    SETUP = "setup"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRefused:
    kind: RefusalKind
    # one sentence for the operator
    text: str
    instance_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """Orders that are neither here nor refused are under way, and will be observed."""

    launched: Sequence[Observed] = ()
    refused: Sequence[LaunchRefused] = ()


class MachineProvider(Protocol):
    # whether it can launch and end machines, or only tell of them
    can_launch: bool

    async def observe(self, fleet: ProviderFleet) -> Sequence[Observed]:
        """Every machine of the fleet that exists or is being made. `ProviderError` when it cannot be known."""
        ...

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        """Make a machine for each order that has none. `total` is how many the fleet then has, for providers that are
        told a number. Repeating a call changes nothing; what is refused is told, not raised."""
        ...

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        """End these machines; one that is gone already is no error. They are not replaced."""
        ...

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        """The fleet's instance types with what they cost now, as far as that can be asked."""
        ...

    async def close(self) -> None: ...
