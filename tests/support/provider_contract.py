"""Tests that every machine provider must pass.

Define a `Site`, which controls the machines of the cloud, and inherit:

    class TestAws(ProviderContract):
        @pytest.fixture
        async def site(self) -> AsyncIterator[Site]: ...

`ThrottledContract` adds tests for clouds that throttle.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from comfyrelay.autoscaling.providers.base import (
    LaunchResult,
    MachineOrder,
    MachineProvider,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
    RefusalKind,
)
from comfyrelay.domain.autoscaling.spec import DEFAULT_MAX_MACHINES
from comfyrelay.errors import ProviderError
from tests.support.world import PATIENCE_SECONDS

FLEET = "portraits"
# Environment variables of a server that its machines and scripts must not get.
SERVER_SECRETS = ("COMFYRELAY_DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "STRIPE_API_KEY")
STAGE = "staging"


class Site(ABC):
    """The cloud behind a provider. Launched machines stay pending until `boot`."""

    @abstractmethod
    def provider(self) -> MachineProvider:
        """Return a new provider without state, as after a crash."""

    @abstractmethod
    async def fleet(
        self, slug: str = FLEET, *, stage: str = STAGE, max_machines: int = DEFAULT_MAX_MACHINES
    ) -> ProviderFleet:
        """Return a fleet that is ready for its first launch; equal arguments give the same fleet."""

    @abstractmethod
    async def existing(self, fleet: ProviderFleet) -> int:
        """Count the existing machines without the provider."""

    @abstractmethod
    async def boot(self, fleet: ProviderFleet) -> None:
        """Boot current and future machines."""

    @abstractmethod
    async def refuse(self, fleet: ProviderFleet) -> RefusalKind:
        """Refuse launches from now on; return the expected kind of refusal."""

    @abstractmethod
    async def cut_off(self) -> None:
        """Make the cloud unreachable."""


class ThrottledSite(Site):
    @abstractmethod
    async def throttle(self, calls: int) -> None:
        """Throttle the next calls."""


@asynccontextmanager
async def opened(site: Site) -> AsyncIterator[MachineProvider]:
    provider = site.provider()
    try:
        yield provider
    finally:
        await provider.close()


def orders(*keys: str) -> list[MachineOrder]:
    return [MachineOrder(key=key) for key in keys]


async def until(condition: Callable[[], Awaitable[bool]], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition, because machines send no notifications."""
    async with asyncio.timeout(patience_seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_observed(
    provider: MachineProvider, fleet: ProviderFleet, count: int, state: ProviderMachineState | None = None
) -> list[ProviderMachine]:
    """Wait until this many machines, except terminating ones, are in this state."""
    found: list[ProviderMachine] = []

    async def is_observed() -> bool:
        found[:] = [
            machine for machine in await provider.observe(fleet) if machine.state is not ProviderMachineState.ENDING
        ]
        return len(found) == count and all(state in (None, machine.state) for machine in found)

    await until(is_observed)
    return found


async def launched(
    provider: MachineProvider, fleet: ProviderFleet, *keys: str, before: int = 0
) -> tuple[LaunchResult, list[ProviderMachine]]:
    """Launch a machine per key and wait until all are observed."""
    result = await provider.launch(fleet, orders(*keys), total=before + len(keys))
    assert not result.refused
    return result, await until_observed(provider, fleet, before + len(keys))


async def wait_until_left(site: Site, provider: MachineProvider, fleet: ProviderFleet, *, left: Sequence[str]) -> None:
    """Wait until only these machines are left and none was replaced."""
    remaining = {machine.id for machine in await until_observed(provider, fleet, len(left))}
    assert remaining == set(left)

    async def are_left() -> bool:
        return await site.existing(fleet) == len(left)

    await until(are_left)


class ProviderContract:
    """The contract; a subclass defines the fixture `site`."""

    @pytest.fixture
    async def provider(self, site: Site) -> AsyncIterator[MachineProvider]:
        async with opened(site) as found:
            yield found

    async def test_every_order_launches_one_machine(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        assert provider.can_launch
        assert list(await provider.observe(fleet)) == []

        result, found = await launched(provider, fleet, "a", "b", "c")

        assert {machine.id for machine in result.launched} <= {machine.id for machine in found}
        assert len({machine.id for machine in found}) == 3
        assert len({machine.worker_id or machine.id for machine in found}) == 3
        assert await site.existing(fleet) == 3
        types = {instance_type.name for instance_type in fleet.spec.instance_types}
        assert {machine.instance_type for machine in found} <= {None, *types}
        keys = [machine.key for machine in found if machine.key is not None]
        assert len(keys) == len(set(keys))
        assert set(keys) <= {"a", "b", "c"}

    async def test_repeated_order_launches_no_second_machine(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        _, first = await launched(provider, fleet, "a")

        _, repeated = await launched(provider, fleet, "a")
        async with opened(site) as restarted:
            _, repeated_after_crash = await launched(restarted, fleet, "a")
        _, with_another = await launched(provider, fleet, "a", "b")

        ids = {machine.id for machine in first}
        assert {machine.id for machine in repeated} == {machine.id for machine in repeated_after_crash} == ids
        assert ids < {machine.id for machine in with_another}
        assert await site.existing(fleet) == 2

    async def test_concurrent_equal_orders_launch_one_machine(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()

        async with opened(site) as other:
            await asyncio.gather(*(caller.launch(fleet, orders("a"), total=1) for caller in (provider, other)))
            await until_observed(provider, fleet, 1)

        assert await site.existing(fleet) == 1

    async def test_machine_is_pending_until_it_runs(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        _, found = await launched(provider, fleet, "a")
        assert [machine.state for machine in found] == [ProviderMachineState.PENDING]

        await site.boot(fleet)

        running = await until_observed(provider, fleet, 1, ProviderMachineState.RUNNING)
        assert [machine.id for machine in running] == [machine.id for machine in found]
        assert all(machine.launched_at is None or machine.launched_at.tzinfo is not None for machine in running)

    async def test_only_the_named_machines_are_terminated_and_not_replaced(
        self, site: Site, provider: MachineProvider
    ) -> None:
        fleet = await site.fleet()
        await site.boot(fleet)
        await launched(provider, fleet, "a", "b", "c")
        remaining, *ended = [
            machine.id for machine in await until_observed(provider, fleet, 3, ProviderMachineState.RUNNING)
        ]

        await provider.end(fleet, ended)

        await wait_until_left(site, provider, fleet, left=[remaining])

    async def test_terminated_machine_may_be_missing_and_is_not_reused(
        self, site: Site, provider: MachineProvider
    ) -> None:
        fleet = await site.fleet()
        _, found = await launched(provider, fleet, "a", "b")
        ended, remaining = (machine.id for machine in found)

        # Both machines are still pending.
        await provider.end(fleet, [ended])
        await wait_until_left(site, provider, fleet, left=[remaining])
        await provider.end(fleet, [ended, "i-00000000000000000"])
        await provider.end(fleet, [])
        _, now = await launched(provider, fleet, "c", before=1)

        assert remaining in {machine.id for machine in now}
        assert ended not in {machine.id for machine in now}
        assert await site.existing(fleet) == 2

    async def test_refusal_has_a_kind_and_a_sentence(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        kind = await site.refuse(fleet)

        result = await provider.launch(fleet, orders("a", "b"), total=2)

        assert not result.launched
        assert {refusal.kind for refusal in result.refused} == {kind}
        assert all(" " in refusal.text and refusal.text.endswith(".") for refusal in result.refused)
        assert await site.existing(fleet) == 0

    async def test_fleet_never_exceeds_its_limit(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet(max_machines=2)

        result = await provider.launch(fleet, orders("a", "b", "c"), total=3)

        assert result.refused
        assert await site.existing(fleet) <= 2
        await provider.launch(fleet, orders("d"), total=3)
        assert await site.existing(fleet) <= 2

    async def test_unreachable_provider_is_an_error_and_not_an_empty_fleet(
        self, site: Site, provider: MachineProvider
    ) -> None:
        fleet = await site.fleet()
        await site.cut_off()

        with pytest.raises(ProviderError) as caught:
            await provider.observe(fleet)

        assert caught.value.detail.endswith(".")

    async def test_prices_cover_the_instance_types_of_the_fleet(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()

        found = await provider.prices(fleet)

        known = {instance_type.name: instance_type for instance_type in fleet.spec.instance_types}
        assert [price.name for price in found] == [*known]
        assert all(price.price_per_hour >= 0 and price.speed == known[price.name].speed for price in found)

    async def test_fleets_and_stages_do_not_share_machines(self, site: Site, provider: MachineProvider) -> None:
        ours, other_stage = await site.fleet(), await site.fleet(stage="production")
        other_fleet = await site.fleet("landscapes")
        _, found = await launched(provider, ours, "a")

        for other in (other_stage, other_fleet):
            assert list(await provider.observe(other)) == []
            await provider.end(other, [found[0].id])
        # The same key in another fleet is another machine.
        _, in_other = await launched(provider, other_fleet, "a")

        assert in_other[0].id != found[0].id
        assert [await site.existing(fleet) for fleet in (ours, other_fleet)] == [1, 1]
        await wait_until_left(site, provider, ours, left=[found[0].id])


class ThrottledContract(ProviderContract):
    """In clouds that throttle, a throttled call is retried or reported."""

    async def test_throttled_launch_succeeds_or_is_refused_and_repeatable(
        self, site: Site, provider: MachineProvider
    ) -> None:
        assert isinstance(site, ThrottledSite)
        fleet = await site.fleet()
        await site.throttle(1)

        result = await provider.launch(fleet, orders("a"), total=1)

        assert {refusal.kind for refusal in result.refused} <= {RefusalKind.THROTTLED}
        if result.refused:
            await provider.launch(fleet, orders("a"), total=1)
        await until_observed(provider, fleet, 1)
        assert await site.existing(fleet) == 1

    async def test_permanent_throttling_is_reported(self, site: Site, provider: MachineProvider) -> None:
        assert isinstance(site, ThrottledSite)
        fleet = await site.fleet()
        await site.throttle(1_000_000)

        result = await provider.launch(fleet, orders("a"), total=1)

        assert [refusal.kind for refusal in result.refused] == [RefusalKind.THROTTLED]
        with pytest.raises(ProviderError):
            await provider.observe(fleet)
        await site.throttle(0)
        assert await site.existing(fleet) == 0
