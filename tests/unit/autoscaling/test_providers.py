"""Providers by name, and providers that launch nothing."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from comfyrelay.autoscaling.providers import registry
from comfyrelay.autoscaling.providers.base import MachineProvider, ProviderFleet, RefusalKind
from comfyrelay.autoscaling.providers.registry import GROUP, ProviderContext, Providers, names
from comfyrelay.autoscaling.providers.static import StaticProvider
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineProviderName, MachineSpec
from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import Settings
from tests.support.provider_contract import orders

FLEET = ProviderFleet(
    slug="home",
    stage="production",
    spec=MachineSpec(instance_types=(InstanceType(name="mine", price_per_hour=0.2),)),
    max_machines=3,
)


@pytest.fixture
def providers(tmp_path: Path) -> Providers:
    settings = Settings(data_dir=tmp_path)
    return Providers(ProviderContext(settings=settings, api_url=settings.base_url, secrets={}))


async def test_every_provider_is_created_once(providers: Providers) -> None:
    can_launch = {name: providers.get(name).can_launch for name in MachineProviderName}
    assert can_launch == {"static": False, "local": True, "command": True, "aws": True, "kubernetes": False}
    assert all(providers.get(name) is providers.get(name) for name in MachineProviderName)
    await providers.close()


@pytest.mark.parametrize("name", ["static", "kubernetes"])
async def test_report_only_provider_refuses_launches_with_a_reason(providers: Providers, name: str) -> None:
    provider = providers.get(name)
    assert list(await provider.observe(FLEET)) == []
    result = await provider.launch(FLEET, orders("a", "b"), total=2)
    assert not result.launched
    [refused] = result.refused
    assert refused.kind is RefusalKind.SETUP
    assert "The fleet home cannot launch machines." in refused.text
    await provider.end(FLEET, ["a"])
    assert list(await provider.prices(FLEET)) == list(FLEET.spec.instance_types)


def test_unknown_provider_error_lists_the_known_ones(providers: Providers) -> None:
    with pytest.raises(ConfigurationError, match=r"no machine provider 'azure'\. Use one of: static, local,"):
        providers.get("azure")


def make_provider(context: ProviderContext) -> MachineProvider:
    """Create a provider, like the entry point of a third-party package."""
    return StaticProvider(f"Ask at {context.api_url}.")


def entry_points(*found: tuple[str, str]) -> EntryPoints:
    return EntryPoints(EntryPoint(name=name, value=value, group=GROUP) for name, value in found)


async def test_installed_package_can_add_a_provider(providers: Providers, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = entry_points(("theirs", f"{__name__}:make_provider"), ("local", f"{__name__}:make_provider"))
    monkeypatch.setattr(registry, "entry_points", installed.select)
    assert names() == [*MachineProviderName, "theirs"]

    [refused] = (await providers.get("theirs").launch(FLEET, orders("a"), total=1)).refused

    assert refused.text.endswith("Ask at http://127.0.0.1:8420.")
    # No package can replace a built-in provider.
    assert providers.get("local").can_launch


def test_provider_that_cannot_be_loaded_is_named(providers: Providers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", entry_points(("theirs", "nowhere:make")).select)
    with pytest.raises(ConfigurationError, match="The provider theirs of nowhere:make cannot be loaded"):
        providers.get("theirs")
