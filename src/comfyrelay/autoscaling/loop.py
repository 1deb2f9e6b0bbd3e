"""The autoscaling loop: observe, decide, record, act, and record the result.

Only the leading process decides: when a job arrives or ends, and at each tick. It queries providers only at ticks, so
that a slow provider does not delay decisions. Launches and terminations are recorded in the database before the
provider is called, under a key with which the next leader can continue.
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
)
from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.decision_records import describe_observation, reason_class
from comfyrelay.domain.autoscaling.machines import MachineRecord
from comfyrelay.domain.autoscaling.observation import ObservedFleet, StageSnapshot
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineSpec
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import ComfyRelayError, LeadershipLost, ProviderError
from comfyrelay.services.autoscaling.machines import Intent
from comfyrelay.services.engine import Engine

log = structlog.get_logger(__name__)

TICK_SECONDS = 5.0
# Wait this long after a wakeup, so that one decision covers jobs that arrive together.
DEBOUNCE_SECONDS = 0.1
# Target share of the time spent deciding. The pause after a decision is at most one tick.
MAX_BUSY = 0.25
PROVIDER_TIMEOUT_SECONDS = 60.0
PRICES_INTERVAL_SECONDS = 300.0
RESIGN_ATTEMPTS = 10
# An answer with more machines than both limits is a mistake: they cannot all belong to the fleet.
IMPLAUSIBLE_MACHINES = 1000
IMPLAUSIBLE_FACTOR = 10


class ProvidersByName(Protocol):
    def get(self, name: str, /) -> MachineProvider | None:
        """Return the provider. If no provider has this name, return `None` or raise a `ComfyRelayError`."""


@dataclass(slots=True)
class _FleetState:
    """State of a fleet between two decisions.

    `failure` says why its provider failed. `recorded` is the reason class of the last recorded decision. `prices` come
    from the provider and are valid for the machine specification `priced`.
    """

    failure: str | None = None
    recorded: str | None = None
    prices: Sequence[InstanceType] | None = None
    priced: MachineSpec | None = None
    prices_at: float = float("-inf")


class ScalingLoop:
    def __init__(self, engine: Engine, providers: ProvidersByName, *, tick_seconds: float | None = None) -> None:
        self._scaling = engine.autoscaling
        self._providers = providers
        self._tick_seconds = TICK_SECONDS if tick_seconds is None else tick_seconds
        self._states: dict[int, _FleetState] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy_fleets: set[int] = set()
        # One writer at a time, so that decisions are based on stable data.
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Run until cancelled. Then another process can lead at once."""
        loops = (self._lead, self._decide_when_due, self._observe_at_ticks)
        try:
            async with asyncio.TaskGroup() as group:
                for loop in loops:
                    group.create_task(loop())
        finally:
            # Use a task that is not cancelled, because database calls of this one would be aborted.
            await asyncio.shield(asyncio.create_task(self._resign()))

    async def _resign(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The first attempts may get connections of cancelled tasks.
        for _ in range(RESIGN_ATTEMPTS):
            try:
                await self._scaling.leadership.resign()
            except ComfyRelayError as error:
                log.info("autoscaling.resign_failed", why=error.detail, cause=repr(error.__cause__))
                await asyncio.sleep(0.1)
            else:
                break

    async def decide_once(self) -> None:
        """Decide for every fleet, and start to carry out the decisions."""
        if self._scaling.leadership.leader is None:
            return
        async with self._writing:
            for stage in sorted({fleet.stage for fleet in await self._scaled_fleets()}):
                seen = await self._scaling.snapshots.take(stage, can_launch=self._can_launch, types_of=self._types)
                plans = {plan.fleet: plan for plan in await asyncio.to_thread(decide, seen.snapshot)}
                for observed in seen.snapshot.fleets:
                    fleet = seen.fleets[observed.slug]
                    # The KEDA scaler records its own decisions, because only the scaler can list the pods.
                    if fleet.is_scaled and not observed.is_scaled_externally:
                        await self._carry_out_alone(fleet, observed, plans[observed.slug], seen.snapshot)

    async def observe_once(self) -> None:
        """Query every provider. A slow or failing provider does not affect the others."""
        if self._scaling.leadership.leader is None:
            return
        fleets = [fleet for fleet in await self._scaled_fleets() if fleet.id not in self._busy_fleets]
        await asyncio.gather(*(self._check_fleet(fleet) for fleet in fleets if self._can_launch(fleet)))

    async def idle(self) -> None:
        """Wait until all started tasks have ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _lead(self) -> None:
        """Lead only if there is a scaled fleet, so that nothing is written otherwise."""
        leadership = self._scaling.leadership
        while True:
            was_leader = has_fleets = leadership.leader is not None
            if not was_leader:
                with suppress(ComfyRelayError):
                    has_fleets = bool(await self._scaled_fleets())
            if has_fleets:
                await self._run_logged("lead", leadership.claim)
                if not was_leader and leadership.leader is not None:
                    self._states.clear()
                    self._scaling.wakeup.notify()
            # A process that has nothing to lead only looks for a new fleet.
            await asyncio.sleep(leadership.renew_seconds if has_fleets else leadership.ttl_seconds)

    async def _decide_when_due(self) -> None:
        while True:
            if await self._scaling.wakeup.wait(self._tick_seconds):
                await asyncio.sleep(DEBOUNCE_SECONDS)
            began = time.monotonic()
            await self._run_logged("decide", self.decide_once)
            # A long queue takes a long time to read. Leave time for other work.
            await asyncio.sleep(min(self._tick_seconds, (time.monotonic() - began) * (1 / MAX_BUSY - 1)))

    async def _observe_at_ticks(self) -> None:
        while True:
            # Not awaited, so that a slow provider does not delay the next tick.
            self._start(self._run_logged("observe", self.observe_once))
            await asyncio.sleep(self._tick_seconds)

    async def _run_logged(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except LeadershipLost:
            log.info("autoscaling.leadership_lost", during=what)
        except ComfyRelayError as error:
            log.warning("autoscaling.failed", during=what, why=error.detail)
        except Exception:
            # An exception must not end the loop: machines would run forever.
            log.exception("autoscaling.failed", during=what)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _scaled_fleets(self) -> list[FleetRecord]:
        return [fleet for fleet in await self._scaling.snapshots.fleets() if fleet.is_scaled]

    def _provider(self, fleet: FleetRecord) -> MachineProvider | None:
        try:
            return self._providers.get(str(fleet.machine_spec.provider))
        except ComfyRelayError as error:
            self._state(fleet).failure = error.detail
            return None

    def _can_launch(self, fleet: FleetRecord) -> bool:
        provider = self._provider(fleet)
        return provider is not None and provider.can_launch

    def _types(self, fleet: FleetRecord) -> Sequence[InstanceType]:
        """Return the fleet's instance types with the provider's prices, if known."""
        state = self._state(fleet)
        prices = state.prices if state.priced == fleet.machine_spec else None
        return prices or fleet.machine_spec.instance_types

    def _state(self, fleet: FleetRecord) -> _FleetState:
        return self._states.setdefault(fleet.id, _FleetState())

    def _count_error(self, fleet: FleetRecord, call: str) -> None:
        self._scaling.monitor.counts.provider_errors[fleet.slug, fleet.stage, call] += 1

    async def _check_fleet(self, fleet: FleetRecord) -> None:
        provider = self._provider(fleet)
        if provider is None:
            return
        self._busy_fleets.add(fleet.id)
        try:
            listed = await self._observe(fleet, provider)
            async with self._writing:
                due = await self._scaling.machines.reconcile(fleet, listed, types=self._types(fleet))
            if due.end:
                await self._end(fleet, provider, due.end)
            if due.order:
                await self._launch(fleet, provider, due.order)
        except LeadershipLost:
            log.info("autoscaling.leadership_lost", during="check", fleet=fleet.slug)
        except ComfyRelayError as error:
            log.warning("autoscaling.check_failed", fleet=fleet.slug, why=error.detail)
        except Exception:
            log.exception("autoscaling.check_failed", fleet=fleet.slug)
        finally:
            self._busy_fleets.discard(fleet.id)

    async def _observe(self, fleet: FleetRecord, provider: MachineProvider) -> Sequence[ProviderMachine] | None:
        """Return the provider's machines. `None` means that the provider failed; then the last known state is kept."""
        state = self._state(fleet)
        try:
            async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS):
                listed = await provider.observe(_provider_fleet(fleet))
            _check_plausible(fleet, len(listed))
        except Exception as error:
            self._count_error(fleet, "observe")
            state.failure = _why(error)
            log.warning("autoscaling.provider_failed", fleet=fleet.slug, stage=fleet.stage, why=state.failure)
            return None
        state.failure = None
        await self._learn_prices(fleet, provider)
        return listed

    async def _learn_prices(self, fleet: FleetRecord, provider: MachineProvider) -> None:
        """Query the prices. After an error, keep the last known prices, so that observation continues."""
        state, spec = self._state(fleet), fleet.machine_spec
        if state.priced != spec:
            state.priced, state.prices, state.prices_at = spec, None, float("-inf")
        if time.monotonic() - state.prices_at < PRICES_INTERVAL_SECONDS:
            return
        state.prices_at = time.monotonic()
        try:
            async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS):
                state.prices = await provider.prices(_provider_fleet(fleet)) or None
        except Exception as error:
            self._count_error(fleet, "prices")
            log.warning("autoscaling.prices_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error))

    async def _carry_out_alone(
        self, fleet: FleetRecord, observed: ObservedFleet, plan: FleetPlan, snapshot: StageSnapshot
    ) -> None:
        """Carry out a plan. An error does not affect other fleets, except for the loss of leadership."""
        try:
            await self._carry_out(fleet, observed, plan, snapshot)
        except LeadershipLost:
            raise
        except Exception as error:
            log.warning("autoscaling.fleet_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error), exc_info=True)

    async def _carry_out(
        self, fleet: FleetRecord, observed: ObservedFleet, plan: FleetPlan, snapshot: StageSnapshot
    ) -> None:
        state = self._state(fleet)
        reason = plan.reason if state.failure is None else f"{plan.reason}; the provider failed: {state.failure}"
        has_effect = not plan.is_empty and not plan.is_report
        if state.recorded is None:
            last = (await self._scaling.views.decisions(Stage(fleet.stage), fleet.slug, limit=1)).items
            state.recorded = reason_class(last[0].reason) if last else None
        if not has_effect and reason_class(reason) == state.recorded:
            return
        types = self._types(fleet)
        saw = describe_observation(observed, plan, snapshot, types)
        intent = await self._scaling.machines.intend(fleet, plan, reason=reason, saw=saw, types=types)
        state.recorded = reason_class(reason)
        provider = self._provider(fleet)
        if provider is not None and (intent.ordered or intent.ending):
            self._start(self._run_logged("act", lambda: self._act(fleet, provider, intent)))

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
        confirmed = await self._scaling.machines.confirm_intent(fleet, [order.key for order in ordered], is_end=False)
        fleet, wanted = confirmed.fleet, confirmed.machines
        if not wanted:
            return {"launched": 0}
        orders = [MachineOrder(key=machine.key, instance_type=machine.instance_type) for machine in wanted]
        try:
            async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS):
                result = await provider.launch(_provider_fleet(fleet), orders, total=confirmed.total)
        except Exception as error:
            # The machines may exist, so the next tick repeats the orders with the same keys.
            self._count_error(fleet, "launch")
            log.warning("autoscaling.launch_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error))
            return {"launch_failed": _why(error)}
        launched, refused = _results(wanted, result)
        await self._scaling.machines.note_launched(wanted, launched, refused, types=self._types(fleet))
        for kind, _text in refused.values():
            self._scaling.monitor.counts.refusals[fleet.slug, fleet.stage, kind] += 1
        if refused:
            # Decide again, because another type may be available.
            self._scaling.wakeup.notify()
        texts = sorted({text for _kind, text in refused.values()})
        # Some providers launch later, such as Auto Scaling groups, which only accept a number.
        pending = len(wanted) - len(launched) - len(refused)
        return {
            "launched": len(launched),
            "refused": len(refused),
            **({"ordered": pending} if pending else {}),
            **({"refusals": texts} if texts else {}),
        }

    async def _end(
        self, fleet: FleetRecord, provider: MachineProvider, ending: Sequence[MachineRecord]
    ) -> dict[str, Any]:
        confirmed = await self._scaling.machines.confirm_intent(fleet, [machine.key for machine in ending], is_end=True)
        fleet = confirmed.fleet
        ids = [machine.provider_id for machine in confirmed.machines if machine.provider_id is not None]
        if not ids:
            return {"ended": 0}
        try:
            async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS):
                await provider.end(_provider_fleet(fleet), ids)
        except Exception as error:
            # The machines are marked, and the next tick repeats the termination.
            self._count_error(fleet, "end")
            log.warning("autoscaling.end_failed", fleet=fleet.slug, stage=fleet.stage, why=_why(error))
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


def _provider_fleet(fleet: FleetRecord) -> ProviderFleet:
    limits = fleet.scaling_spec.limits
    return ProviderFleet(slug=fleet.slug, stage=fleet.stage, spec=fleet.machine_spec, max_machines=limits.max_machines)


def _check_plausible(fleet: FleetRecord, machines: int) -> None:
    limit = fleet.scaling_spec.limits.max_machines
    if machines > max(IMPLAUSIBLE_MACHINES, IMPLAUSIBLE_FACTOR * limit):
        raise ProviderError(
            f"The provider reports {machines} machines, but the fleet may have {limit}. Nothing was changed: make "
            "sure that it reports this fleet's machines only."
        )


def _results(
    wanted: Sequence[MachineRecord], result: LaunchResult
) -> tuple[dict[str, ProviderMachine], dict[str, tuple[str, str]]]:
    """Return launched machines and refusals by key. All other orders are pending.

    A refusal applies to every order of its type, or to all if it names no type.
    """
    orders = {order.key: order for order in wanted}
    launched: dict[str, ProviderMachine] = {}
    # Machines without a key get the remaining orders.
    for machine in sorted(result.launched, key=lambda machine: machine.key is None):
        key = next(iter(orders), None) if machine.key is None else machine.key
        if key in orders:
            launched[key] = machine
            del orders[key]
    refused = {
        key: (str(refusal.kind), refusal.text)
        for refusal in result.refused
        for key, order in orders.items()
        if refusal.instance_type in (None, order.instance_type)
    }
    return launched, refused


def _why(error: Exception) -> str:
    if isinstance(error, ComfyRelayError):
        return error.detail
    if isinstance(error, TimeoutError):
        return f"It did not answer within {PROVIDER_TIMEOUT_SECONDS:g} s."
    return f"{type(error).__name__}: {error}"
