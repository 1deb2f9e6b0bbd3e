"""Find the running desk that a command means."""

from urllib.parse import urlsplit

from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import RunningDesk, running_desks


def desk_meant(settings: Settings, *, choose_with: str) -> RunningDesk | None:
    """Return the desk with the configured port and folder; if neither is set, the only one.

    Raises `ConfigurationError` if several match.
    """
    given = settings.model_fields_set
    found = [
        each
        for each in running_desks()
        if ("port" not in given or urlsplit(each.url).port == settings.port)
        and ("data_dir" not in given or each.data_dir.resolve() == settings.data_dir.resolve())
    ]
    if len(found) > 1:
        named = ", ".join(map(str, found))
        raise ConfigurationError(f"{len(found)} desks run here: {named}. Say which one you mean with {choose_with}.")
    return found[0] if found else None
