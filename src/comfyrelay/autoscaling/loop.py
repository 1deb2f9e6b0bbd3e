"""The autoscaling loop: observe, decide, record, act, and record the result.

One process leads. It decides when a job arrives or ends, and at each tick; it queries providers only at ticks, so that
a slow provider delays no decision. Launches and terminations are in the database before the provider is called, under a
key that the next leader continues with.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from comfyrelay.autoscaling.providers.base import (
    LaunchResult,
    MachineOrder,
    MachineProvider,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
)
from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.decision_records import describe_observation, reason_class
from comfyrelay.domain.autoscaling.machines import MachineRecord
from comfyrelay.domain.autoscaling.observation import ObservedFleet, StageSnapshot
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.reconcile import ProviderMachine
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineSpec
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import ComfyRelayError, LeadershipLost, ProviderError
from comfyrelay.services.autoscaling.machines import Intent
from comfyrelay.services.engine import Engine

log = structlog.get_logger(__name__)

TICK_SECONDS = 5.0
# Jobs that arrive together are decided on together.
DEBOUNCE_SECONDS = 0.1
# Deciding takes at most this share of the time, even with a long queue.
MAX_BUSY = 0.25
# Provider timeout.
PROVIDER_SECONDS = 60.0
PRICES_SECONDS = 300.0
LET_GO_TRIES = 10
# An answer with more machines than both limits is a mistake: they cannot be the fleet's.
FAR_TOO_MANY = 1000
FAR_TOO_MANY_TIMES = 10


class ProvidersByName(Protocol):
    """Machine providers by name."""

    def get(self, name: str, /) -> MachineProvider | None:
        """Return the provider, or `None` or an error of ours if there is none of this name."""


@dataclass(slots=True)
class _Known:
    """State of a fleet between two decisions."""

    # why its provider failed
    failure: str | None = None
    # of the last recorded decision
    recorded: str | None = None
    # prices from the provider, for these machine types only
    prices: Sequence[InstanceType] | None = None
    priced: MachineSpec | None = None
    prices_at: float = float("-inf")


class ScalingLoop:
    def __init__(self, engine: Engine, providers: ProvidersByName, *, tick_seconds: float | None = None) -> None:
        self._scaling = engine.autoscaling
        self._providers = providers
        self._tick_seconds = TICK_SECONDS if tick_seconds is None else tick_seconds
        self._known: dict[int, _Known] = {}
        self._acts: set[asyncio.Task[None]] = set()
        self._busy_fleets: set[int] = set()
        # One writer at a time, so that decisions are made on stable data.
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Run until cancelled; another process may lead at once."""
        loops = (self._lead, self._decide_when_due, self._observe_at_ticks)
        try:
            async with asyncio.TaskGroup() as group:
                for loop in loops:
                    group.create_task(loop())
        finally:
            # in a task that was not cancelled, because database calls of this one would be aborted
            await asyncio.shield(asyncio.create_task(self._let_go()))

    async def _let_go(self) -> None:
        for task in self._acts:
            task.cancel()
        await asyncio.gather(*self._acts, return_exceptions=True)
        # first attempts may get connections of cancelled tasks
        for _ in range(LET_GO_TRIES):
            try:
                await self._scaling.leadership.resign()
            except ComfyRelayError as error:
                log.info("scaling.resign_failed", why=error.detail, cause=repr(error.__cause__))
                await asyncio.sleep(0.1)
            else:
                break

    async def decide_once(self) -> None:
        """Decide for every fleet and start to act."""
        if self._scaling.leadership.leader is None:
            return
        async with self._writing:
            fleets = await self._scaled()
            for stage in sorted({each.stage for each in fleets}):
                seen = await self._scaling.snapshots.take(stage, can_launch=self._can_launch, types_of=self._types)
                plans = {plan.fleet: plan for plan in await asyncio.to_thread(decide, seen.snapshot)}
                for seen_fleet in seen.snapshot.fleets:
                    fleet = seen.fleets[seen_fleet.slug]
                    # the KEDA scaler records its number itself, together with the pods that only it sees
                    if fleet.is_scaled and not seen_fleet.is_scaled_externally:
                        await self._carry_out_alone(fleet, seen_fleet, plans[seen_fleet.slug], seen.snapshot)

    async def observe_once(self) -> None:
        """Query every provider; a slow or failing one affects no other."""
        if self._scaling.leadership.leader is None:
            return
        await self._quietly("learn", self._scaling.durations.learn)
        fleets = [each for each in await self._scaled() if each.id not in self._busy_fleets and self._can_launch(each)]
        await asyncio.gather(*(self._check_fleet(fleet) for fleet in fleets))

    async def idle(self) -> None:
        """Wait for everything that was started."""
        while self._acts:
            await asyncio.gather(*self._acts, return_exceptions=True)

    async def _lead(self) -> None:
        """Lead only if there is a scaled fleet: otherwise nothing is written."""
        leadership = self._scaling.leadership
        while True:
            if leadership.leader is not None or await self._try(self._scaled, []):
                was_led = leadership.leader is not None
                await self._quietly("lead", leadership.claim)
                if not was_led and leadership.leader is not None:
                    self._known.clear()
                    self._scaling.wakeup.notify()
            await asyncio.sleep(leadership.renew_seconds)

    async def _decide_when_due(self) -> None:
        while True:
            if await self._scaling.wakeup.wait(self._tick_seconds):
                await asyncio.sleep(DEBOUNCE_SECONDS)
            began = time.monotonic()
            await self._quietly("decide", self.decide_once)
            # a long queue takes long to read: leave time for other work
            await asyncio.sleep(min(self._tick_seconds, (time.monotonic() - began) * (1 / MAX_BUSY - 1)))

    async def _observe_at_ticks(self) -> None:
        while True:
            # not awaited: the next tick comes even if a provider is slow
            self._begin(self._quietly("observe", self.observe_once))
            await asyncio.sleep(self._tick_seconds)

    async def _quietly(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except LeadershipLost:
            log.info("scaling.leadership_lost", during=what)
        except ComfyRelayError as error:
            log.warning("scaling.failed", during=what, why=error.detail)
        except Exception:
            # An exception must not end the loop: machines would run for ever.
            log.exception("scaling.failed", during=what)

    async def _try(
        self, work: Callable[[], Awaitable[list[FleetRecord]]], otherwise: list[FleetRecord]
    ) -> list[FleetRecord]:
        try:
            return await work()
        except ComfyRelayError:
            return otherwise

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._acts.add(task)
        task.add_done_callback(self._acts.discard)

    async def _scaled(self) -> list[FleetRecord]:
        return [fleet for fleet in await self._scaling.snapshots.fleets() if fleet.is_scaled]

    def _provider(self, fleet: FleetRecord) -> MachineProvider | None:
        try:
            return self._providers.get(str(fleet.machine_spec.provider))
        except ComfyRelayError as error:
            self._of(fleet).failure = error.detail
            return None

    def _can_launch(self, fleet: FleetRecord) -> bool:
        provider = self._provider(fleet)
        return provider is not None and provider.can_launch

    def _types(self, fleet: FleetRecord) -> Sequence[InstanceType]:
        """Current prices, if the provider knows better than the fleet's settings."""
        known = self._of(fleet)
        prices = known.prices if known.priced == fleet.machine_spec else None
        return prices or fleet.machine_spec.instance_types

    def _of(self, fleet: FleetRecord) -> _Known:
        return self._known.setdefault(fleet.id, _Known())

    async def _check_fleet(self, fleet: FleetRecord) -> None:
        provider = self._provider(fleet)
        if provider is None:
            return
        self._busy_fleets.add(fleet.id)
        try:
            sightings = await self._observe(fleet, provider)
            async with self._writing:
                due = await self._scaling.machines.reconcile(fleet, sightings, types=self._types(fleet))
            if due.end:
                await self._end(fleet, provider, due.end)
            if due.order:
                await self._launch(fleet, provider, due.order)
        except LeadershipLost:
            log.info("scaling.leadership_lost", during="look", fleet=fleet.slug)
        except ComfyRelayError as error:
            log.warning("scaling.look_failed", fleet=fleet.slug, why=error.detail)
        except Exception:
            log.exception("scaling.look_failed", fleet=fleet.slug)
        finally:
            self._busy_fleets.discard(fleet.id)

    async def _observe(self, fleet: FleetRecord, provider: MachineProvider) -> list[ProviderMachine] | None:
        """`None` if the provider fails: then the last answer counts."""
        known = self._of(fleet)
        try:
            async with asyncio.timeout(PROVIDER_SECONDS):
                found = [_sighting(each) for each in await provider.observe(_machines(fleet))]
            _require_believable(fleet, len(found))
        except Exception as error:
            known.failure = _why(error)
            log.warning("scaling.provider_failed", fleet=fleet.slug, stage=fleet.stage, why=known.failure)
            return None
        known.failure = None
        await self._learn_prices(fleet, provider)
        return found

    async def _learn_prices(self, fleet: FleetRecord, provider: MachineProvider) -> None:
        """Without prices the last known ones count; machines are observed in any case."""
        known, spec = self._of(fleet), fleet.machine_spec
        if known.priced != spec:
            known.priced, known.prices, known.prices_at = spec, None, float("-inf")
        if time.monotonic() - known.prices_at < PRICES_SECONDS:
            return
        known.prices_at = time.monotonic()
        try:
            async with asyncio.timeout(PROVIDER_SECONDS):
                known.prices = await provider.prices(_machines(fleet)) or None
        except Exception as error:
            log.warning("scaling.prices_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error))

    async def _carry_out_alone(
        self, fleet: FleetRecord, seen: ObservedFleet, plan: FleetPlan, snapshot: StageSnapshot
    ) -> None:
        """An error of one fleet affects no other, except that losing leadership ends all."""
        try:
            await self._carry_out(fleet, seen, plan, snapshot)
        except LeadershipLost:
            raise
        except Exception as error:
            log.warning("scaling.fleet_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error), exc_info=True)

    async def _carry_out(
        self, fleet: FleetRecord, seen: ObservedFleet, plan: FleetPlan, snapshot: StageSnapshot
    ) -> None:
        known = self._of(fleet)
        reason = plan.reason if known.failure is None else f"{plan.reason}; the provider failed: {known.failure}"
        does = not plan.is_empty and not plan.is_report
        kind = reason_class(reason)
        if known.recorded is None:
            known.recorded = await self._last_recorded(fleet)
        if not does and kind == known.recorded:
            return
        types = self._types(fleet)
        saw = describe_observation(seen, plan, snapshot, types)
        intent = await self._scaling.machines.intend(fleet, plan, reason=reason, saw=saw, types=types)
        known.recorded = kind
        provider = self._provider(fleet)
        if provider is not None and (intent.ordered or intent.ending):
            self._begin(self._quietly("act", lambda: self._act(fleet, provider, intent)))

    async def _last_recorded(self, fleet: FleetRecord) -> str | None:
        found = (await self._scaling.views.decisions(Stage(fleet.stage), fleet.slug, limit=1)).items
        return reason_class(found[0].reason) if found else None

    async def _act(self, fleet: FleetRecord, provider: MachineProvider, intent: Intent) -> None:
        outcome: dict[str, Any] = {"busy": list(intent.busy)} if intent.busy else {}
        if intent.ordered:
            outcome |= await self._launch(fleet, provider, intent.ordered)
        if intent.ending:
            outcome |= await self._end(fleet, provider, intent.ending)
        if intent.decision_id is not None:
            await self._scaling.machines.note_outcome(intent.decision_id, outcome)

    async def _launch(
        self, fleet: FleetRecord, provider: MachineProvider, ordered: Sequence[MachineRecord]
    ) -> dict[str, Any]:
        standing = await self._scaling.machines.standing(fleet, [each.key for each in ordered], is_end=False)
        fleet, wanted = standing.fleet, standing.machines
        if not wanted:
            return {"launched": 0}
        orders = [MachineOrder(key=each.key, instance_type=each.instance_type) for each in wanted]
        try:
            async with asyncio.timeout(PROVIDER_SECONDS):
                result = await provider.launch(_machines(fleet), orders, total=standing.total)
        except Exception as error:
            # unknown whether they exist: order them again under the same keys
            log.warning("scaling.launch_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error))
            return {"launch_failed": _why(error)}
        launched, refused = _results(wanted, result)
        await self._scaling.machines.note_launched(wanted, launched, refused, types=self._types(fleet))
        if refused:
            # another type may be available
            self._scaling.wakeup.notify()
        texts = sorted({text for _kind, text in refused.values()})
        return {"launched": len(launched), "refused": len(refused), **({"refusals": texts} if texts else {})}

    async def _end(
        self, fleet: FleetRecord, provider: MachineProvider, ending: Sequence[MachineRecord]
    ) -> dict[str, Any]:
        standing = await self._scaling.machines.standing(fleet, [each.key for each in ending], is_end=True)
        fleet = standing.fleet
        ids = [machine.provider_id for machine in standing.machines if machine.provider_id is not None]
        if not ids:
            return {"ended": 0}
        try:
            async with asyncio.timeout(PROVIDER_SECONDS):
                await provider.end(_machines(fleet), ids)
        except Exception as error:
            # They are marked, and terminated again at the next tick.
            log.warning("scaling.end_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error))
            return {"end_failed": _why(error)}
        return {"ended": len(ids)}


@asynccontextmanager
async def scaling(engine: Engine, providers: ProvidersByName) -> AsyncIterator[ScalingLoop]:
    """Run the loop inside the block."""
    loop = ScalingLoop(engine, providers)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _machines(fleet: FleetRecord) -> ProviderFleet:
    limits = fleet.scaling_spec.limits
    return ProviderFleet(slug=fleet.slug, stage=fleet.stage, spec=fleet.machine_spec, max_machines=limits.max_machines)


def _require_believable(fleet: FleetRecord, machines: int) -> None:
    most = fleet.scaling_spec.limits.max_machines
    if machines > max(FAR_TOO_MANY, FAR_TOO_MANY_TIMES * most):
        raise ProviderError(
            f"The provider reports {machines} machines, but the fleet may have {most}. Nothing was changed: make "
            "sure that it reports this fleet's machines only."
        )


def _sighting(each: ProviderMachine) -> ProviderMachine:
    return ProviderMachine(
        id=each.id,
        is_ending=each.state is ProviderMachineState.ENDING,
        key=each.key,
        worker_id=each.worker_id,
        instance_type=each.instance_type,
        price_per_hour=each.price_per_hour,
        launched_at=each.launched_at,
    )


def _results(
    wanted: Sequence[MachineRecord], result: LaunchResult
) -> tuple[dict[str, ProviderMachine], dict[str, tuple[str, str]]]:
    """Results of orders by key; orders that are neither launched nor refused are pending.

    A refusal applies to every order of its type, or to all if it names no type.
    """
    left = {each.key: each for each in wanted}
    launched: dict[str, ProviderMachine] = {}
    for each in sorted(result.launched, key=lambda found: found.key is None):
        key = each.key if each.key in left else next(iter(left), None) if each.key is None else None
        if key is not None:
            launched[key] = _sighting(each)
            del left[key]
    refused = {
        key: (str(refusal.kind), refusal.text)
        for refusal in result.refused
        for key, machine in left.items()
        if refusal.instance_type in (None, machine.instance_type)
    }
    return launched, refused


def _why(error: Exception) -> str:
    if isinstance(error, ComfyRelayError):
        return error.detail
    if isinstance(error, TimeoutError):
        return f"It did not answer within {PROVIDER_SECONDS:g} s."
    return f"{type(error).__name__}: {error}"
