"""Which of the desks that run here is meant, where no address says so."""

from urllib.parse import urlsplit

from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import RunningDesk, running


def desk_meant(settings: Settings, *, choose_with: str) -> RunningDesk | None:
    """The one with the port and the folder that are set; where neither is, the only one.

    `ConfigurationError` names them when there are several, and what chooses one.
    """
    given = settings.model_fields_set
    found = [
        each
        for each in running()
        if ("port" not in given or urlsplit(each.url).port == settings.port)
        and ("data_dir" not in given or each.data_dir.resolve() == settings.data_dir.resolve())
    ]
    if len(found) > 1:
        named = ", ".join(map(str, found))
        raise ConfigurationError(f"{len(found)} desks run here: {named}. Say which one you mean with {choose_with}.")
    return found[0] if found else None
