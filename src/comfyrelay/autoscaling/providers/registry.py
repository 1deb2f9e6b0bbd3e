"""Machine providers by name, built in or from other packages.

A package adds one with an entry point in the group `comfyrelay.machine_providers`. The entry point is called with a
`ProviderContext` and returns a `MachineProvider`. Fleets refer to it by its name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from comfyrelay.autoscaling.providers.base import MachineProvider
from comfyrelay.autoscaling.providers.command import CommandProvider
from comfyrelay.autoscaling.providers.local import LocalProvider
from comfyrelay.autoscaling.providers.static import StaticProvider
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require
from comfyrelay.settings import Settings

GROUP = "comfyrelay.machine_providers"


@dataclass(frozen=True, kw_only=True)
class ProviderContext:
    """Data about the server for providers. Workers register at `api_url` with a secret of their stage."""

    settings: Settings
    api_url: str
    secrets: Mapping[str, Sequence[str]]


class Providers:
    """The available providers. Each is created on first use and shared by all fleets."""

    def __init__(self, context: ProviderContext) -> None:
        self._context = context
        self._created: dict[str, MachineProvider] = {}

    def get(self, name: str) -> MachineProvider:
        """Return the provider. Raises `ConfigurationError` if it is unknown or unusable here."""
        if name not in self._created:
            self._created[name] = _factory(name)(self._context)
        return self._created[name]

    async def close(self) -> None:
        for provider in self._created.values():
            await provider.close()
        self._created.clear()


def names() -> list[str]:
    """Return all names that fleets can use."""
    return [*_FACTORIES, *sorted(set(entry_points(group=GROUP).names) - set(_FACTORIES))]


def _factory(name: str) -> Callable[[ProviderContext], MachineProvider]:
    if name in _FACTORIES:
        return _FACTORIES[name]
    # Built-in names come first, so that an installed package cannot replace them.
    for entry_point in entry_points(group=GROUP, name=name):
        try:
            found: Callable[[ProviderContext], MachineProvider] = entry_point.load()
        except Exception as error:
            raise ConfigurationError(
                f"The provider {name} of {entry_point.value} cannot be loaded: {error}."
            ) from error
        return found
    raise ConfigurationError(f"There is no machine provider {name!r}. Use one of: {', '.join(names())}.")


def _local(context: ProviderContext) -> MachineProvider:
    return LocalProvider(
        folder=context.settings.data_dir / "machines",
        api_url=context.api_url,
        secrets=context.secrets,
        programs=context.settings.fleet_commands_dir,
        variables=context.settings.fleet_environment,
    )


def _command(context: ProviderContext) -> MachineProvider:
    return CommandProvider(
        folder=context.settings.data_dir / "fleet-commands",
        api_url=context.api_url,
        secrets=context.secrets,
        programs=context.settings.fleet_commands_dir,
        variables=context.settings.fleet_environment,
    )


def _aws(_context: ProviderContext) -> MachineProvider:
    require("aws")
    from comfyrelay.autoscaling.providers.aws import AwsProvider  # noqa: PLC0415 - boto3 comes with an extra

    return AwsProvider()


_FACTORIES: Mapping[str, Callable[[ProviderContext], MachineProvider]] = {
    MachineProviderName.STATIC: lambda _context: StaticProvider(),
    MachineProviderName.LOCAL: _local,
    MachineProviderName.COMMAND: _command,
    MachineProviderName.AWS: _aws,
    MachineProviderName.KUBERNETES: lambda _context: StaticProvider("Its cluster starts and stops the workers."),
}
