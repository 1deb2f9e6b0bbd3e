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
STAGE = "staging"


class Site(ABC):
    """The cloud behind a provider. Launched machines stay pending until `boot`."""

    @abstractmethod
    def provider(self) -> MachineProvider:
        """A new provider without state, as after a crash."""

    @abstractmethod
    async def fleet(
        self, slug: str = FLEET, *, stage: str = STAGE, max_machines: int = DEFAULT_MAX_MACHINES
    ) -> ProviderFleet:
        """A fleet that is ready for its first launch; the same arguments give the same fleet."""

    @abstractmethod
    async def existing(self, fleet: ProviderFleet) -> int:
        """Number of existing machines, counted without the provider."""

    @abstractmethod
    async def boot(self, fleet: ProviderFleet) -> None:
        """Boot current and future machines."""

    @abstractmethod
    async def refuse(self, fleet: ProviderFleet) -> RefusalKind:
        """Refuse launches; returns the expected kind of refusal."""

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


async def until(is_so: Callable[[], Awaitable[bool]], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Poll: machines send no notifications."""
    async with asyncio.timeout(patience_seconds):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_observed(
    provider: MachineProvider, fleet: ProviderFleet, count: int, state: ProviderMachineState | None = None
) -> list[ProviderMachine]:
    """Wait until this many machines are in this state; ignores terminating ones."""
    found: list[ProviderMachine] = []

    async def is_so() -> bool:
        found[:] = [each for each in await provider.observe(fleet) if each.state is not ProviderMachineState.ENDING]
        return len(found) == count and all(state in (None, each.state) for each in found)

    await until(is_so)
    return found


async def launched(
    provider: MachineProvider, fleet: ProviderFleet, *keys: str, before: int = 0
) -> tuple[LaunchResult, list[ProviderMachine]]:
    """Launch a machine per key and wait until all are observed."""
    result = await provider.launch(fleet, orders(*keys), total=before + len(keys))
    assert not result.refused
    return result, await until_observed(provider, fleet, before + len(keys))


async def gone(site: Site, provider: MachineProvider, fleet: ProviderFleet, *, left: Sequence[str]) -> None:
    """Wait until only these machines are left and none was replaced."""
    remaining = {each.id for each in await until_observed(provider, fleet, len(left))}
    assert remaining == set(left)

    async def are_left() -> bool:
        return await site.existing(fleet) == len(left)

    await until(are_left)


class ProviderContract:
    """A subclass defines the fixture `site`."""

    @pytest.fixture
    async def provider(self, site: Site) -> AsyncIterator[MachineProvider]:
        async with opened(site) as found:
            yield found

    async def test_fleet_without_machines_is_empty(self, site: Site, provider: MachineProvider) -> None:
        assert provider.can_launch
        assert list(await provider.observe(await site.fleet())) == []

    async def test_each_order_becomes_one_machine(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()

        _, found = await launched(provider, fleet, "a", "b", "c")

        assert len({each.id for each in found}) == 3
        assert len({each.worker_id or each.id for each in found}) == 3
        assert await site.existing(fleet) == 3
        names = {instance_type_.name for instance_type_ in fleet.spec.instance_types}
        assert all(each.instance_type is None or each.instance_type in names for each in found)

    async def test_launched_machines_are_observed(self, site: Site, provider: MachineProvider) -> None:
        result, found = await launched(provider, await site.fleet(), "a", "b")

        assert {each.id for each in result.launched} <= {each.id for each in found}
        keys = [each.key for each in found if each.key is not None]
        assert len(keys) == len(set(keys))
        assert set(keys) <= {"a", "b"}

    async def test_repeated_order_makes_no_second_machine(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        _, first = await launched(provider, fleet, "a", "b")

        _, again = await launched(provider, fleet, "a", "b")

        assert {each.id for each in again} == {each.id for each in first}
        assert await site.existing(fleet) == 2

    async def test_order_repeated_after_a_crash_makes_no_second_machine(
        self, site: Site, provider: MachineProvider
    ) -> None:
        fleet = await site.fleet()
        _, first = await launched(provider, fleet, "a", "b")

        async with opened(site) as other:
            _, again = await launched(other, fleet, "a", "b")

        assert {each.id for each in again} == {each.id for each in first}
        assert await site.existing(fleet) == 2

    async def test_concurrent_equal_orders_make_one_machine(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()

        async with opened(site) as other:
            await asyncio.gather(*(each.launch(fleet, orders("a"), total=1) for each in (provider, other)))
            await until_observed(provider, fleet, 1)

        assert await site.existing(fleet) == 1

    async def test_new_order_with_a_repeated_one_makes_one_machine(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        _, first = await launched(provider, fleet, "a")

        _, both = await launched(provider, fleet, "a", "b")

        assert {each.id for each in first} < {each.id for each in both}
        assert await site.existing(fleet) == 2

    async def test_machine_is_pending_until_it_runs(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        _, found = await launched(provider, fleet, "a")
        assert [each.state for each in found] == [ProviderMachineState.PENDING]

        await site.boot(fleet)

        running = await until_observed(provider, fleet, 1, ProviderMachineState.RUNNING)
        assert [each.id for each in running] == [each.id for each in found]
        assert all(each.launched_at is None or each.launched_at.tzinfo is not None for each in running)

    async def test_only_the_named_machines_are_terminated_and_not_replaced(
        self, site: Site, provider: MachineProvider
    ) -> None:
        fleet = await site.fleet()
        await site.boot(fleet)
        await launched(provider, fleet, "a", "b", "c")
        kept, *ended = [each.id for each in await until_observed(provider, fleet, 3, ProviderMachineState.RUNNING)]

        await provider.end(fleet, ended)

        await gone(site, provider, fleet, left=[kept])

    async def test_pending_machine_can_be_terminated(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        _, found = await launched(provider, fleet, "a", "b")

        await provider.end(fleet, [found[0].id])

        await gone(site, provider, fleet, left=[found[1].id])

    async def test_terminating_a_missing_machine_is_no_error(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        _, found = await launched(provider, fleet, "a", "b")
        ended, kept = (each.id for each in found)
        await provider.end(fleet, [ended])
        await gone(site, provider, fleet, left=[kept])

        await provider.end(fleet, [ended, "i-00000000000000000"])
        await provider.end(fleet, [])

        await gone(site, provider, fleet, left=[kept])

    async def test_new_order_after_a_termination_makes_a_new_machine(
        self, site: Site, provider: MachineProvider
    ) -> None:
        fleet = await site.fleet()
        _, found = await launched(provider, fleet, "a", "b")
        await provider.end(fleet, [found[0].id])
        await gone(site, provider, fleet, left=[found[1].id])

        _, now = await launched(provider, fleet, "c", before=1)

        assert found[0].id not in {each.id for each in now}
        assert await site.existing(fleet) == 2

    async def test_refusal_has_a_kind_and_a_sentence(self, site: Site, provider: MachineProvider) -> None:
        fleet = await site.fleet()
        kind = await site.refuse(fleet)

        result = await provider.launch(fleet, orders("a", "b"), total=2)

        assert not result.launched
        assert {each.kind for each in result.refused} == {kind}
        assert all(" " in each.text and each.text.endswith(".") for each in result.refused)
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

        known = {instance_type_.name: instance_type_ for instance_type_ in fleet.spec.instance_types}
        assert [each.name for each in found] == [*known]
        assert all(each.price_per_hour >= 0 and each.speed == known[each.name].speed for each in found)

    async def test_fleets_and_stages_do_not_share_machines(self, site: Site, provider: MachineProvider) -> None:
        ours, other_stage = await site.fleet(), await site.fleet(stage="production")
        other_fleet = await site.fleet("landscapes")
        _, found = await launched(provider, ours, "a")

        for other in (other_stage, other_fleet):
            assert list(await provider.observe(other)) == []
            await provider.end(other, [found[0].id])

        await gone(site, provider, ours, left=[found[0].id])

    async def test_same_key_in_two_fleets_is_two_machines(self, site: Site, provider: MachineProvider) -> None:
        ours, other = await site.fleet(), await site.fleet("landscapes")

        _, in_ours = await launched(provider, ours, "a")
        _, in_other = await launched(provider, other, "a")

        assert in_ours[0].id != in_other[0].id
        assert [await site.existing(each) for each in (ours, other)] == [1, 1]


class ThrottledContract(ProviderContract):
    """For clouds that throttle: a throttled call is retried or reported."""

    async def test_throttled_launch_succeeds_or_is_refused_and_repeatable(
        self, site: Site, provider: MachineProvider
    ) -> None:
        assert isinstance(site, ThrottledSite)
        fleet = await site.fleet()
        await site.throttle(1)

        result = await provider.launch(fleet, orders("a"), total=1)

        assert {each.kind for each in result.refused} <= {RefusalKind.THROTTLED}
        if result.refused:
            await provider.launch(fleet, orders("a"), total=1)
        await until_observed(provider, fleet, 1)
        assert await site.existing(fleet) == 1

    async def test_permanent_throttling_is_reported(self, site: Site, provider: MachineProvider) -> None:
        assert isinstance(site, ThrottledSite)
        fleet = await site.fleet()
        await site.throttle(1_000_000)

        result = await provider.launch(fleet, orders("a"), total=1)

        assert [each.kind for each in result.refused] == [RefusalKind.THROTTLED]
        with pytest.raises(ProviderError):
            await provider.observe(fleet)
        await site.throttle(0)
        assert await site.existing(fleet) == 0
