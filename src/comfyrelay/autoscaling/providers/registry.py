"""Machine providers by name, built in or from other packages.

A package adds one with an entry point in the group `comfyrelay.machine_providers`: it is called with `Surroundings` and
returns a `MachineProvider`. Fleets refer to it by its name.
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
class Surroundings:
    """What a provider may need to know about the server: workers register at `api_url` with a secret of their stage."""

    settings: Settings
    api_url: str
    secrets: Mapping[str, Sequence[str]]


class Providers:
    """Providers are created on first use and shared by all fleets."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._made: dict[str, MachineProvider] = {}

    def get(self, name: str) -> MachineProvider:
        """Return the provider. Raises `ConfigurationError` if it is unknown or unusable here."""
        if name not in self._made:
            self._made[name] = _maker(name)(self._surroundings)
        return self._made[name]

    async def close(self) -> None:
        for each in self._made.values():
            await each.close()
        self._made.clear()


def names() -> list[str]:
    """All names that fleets can use."""
    return [*_MAKERS, *sorted(set(entry_points(group=GROUP).names) - set(_MAKERS))]


def _maker(name: str) -> Callable[[Surroundings], MachineProvider]:
    if name in _MAKERS:
        return _MAKERS[name]
    # built-in names come first: an installed package cannot replace them
    for entry_point in entry_points(group=GROUP, name=name):
        try:
            found: Callable[[Surroundings], MachineProvider] = entry_point.load()
        except Exception as error:
            raise ConfigurationError(
                f"The provider {name} of {entry_point.value} cannot be loaded: {error}."
            ) from error
        return found
    raise ConfigurationError(f"There is no provider of machines {name!r}. There are: {', '.join(names())}.")


def _static(_surroundings: Surroundings) -> MachineProvider:
    return StaticProvider()


def _kubernetes(_surroundings: Surroundings) -> MachineProvider:
    return StaticProvider("Its cluster asks how many workers there should be, and starts and ends them.")


def _local(around: Surroundings) -> MachineProvider:
    return LocalProvider(
        folder=around.settings.data_dir / "machines",
        api_url=around.api_url,
        secrets=around.secrets,
        programs=around.settings.fleet_commands_dir,
    )


def _command(around: Surroundings) -> MachineProvider:
    return CommandProvider(
        folder=around.settings.data_dir / "fleet-commands",
        api_url=around.api_url,
        secrets=around.secrets,
        programs=around.settings.fleet_commands_dir,
    )


def _aws(_surroundings: Surroundings) -> MachineProvider:
    require("aws")
    from comfyrelay.autoscaling.providers.aws import AwsProvider  # noqa: PLC0415 - boto3 comes with an extra

    return AwsProvider()


_MAKERS: Mapping[str, Callable[[Surroundings], MachineProvider]] = {
    MachineProviderName.STATIC: _static,
    MachineProviderName.LOCAL: _local,
    MachineProviderName.COMMAND: _command,
    MachineProviderName.AWS: _aws,
    MachineProviderName.KUBERNETES: _kubernetes,
}
