"""Open the sockets that the desk listens on. Imported before the engine, so that a taken port is reported at once."""

import socket
from collections.abc import Sequence

from comfyrelay.desk.running_desks import refuse_second
from comfyrelay.errors import ConfigurationError
from comfyrelay.http_client import is_loopback, listen
from comfyrelay.settings import Settings

LOOPBACK = "127.0.0.1"


def require_free(settings: Settings) -> None:
    """Raise `ConfigurationError` if another desk uses this folder, or another process uses the port."""
    refuse_second(settings.data_dir)
    for listener in open_listeners(settings.host, settings.port):
        listener.close()


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Open the listening sockets, loopback first.

    The owner's programs always connect over loopback and send their secret there, so no other process may listen on it.
    """
    if is_loopback(host):
        return [listen(host, port)]
    loopback = listen(LOOPBACK, port)
    try:
        return [loopback, listen(host, port)]
    except ConfigurationError:
        loopback.close()
        # Linux refuses a second listener on an address that a wildcard listener covers.
        if host != "0.0.0.0":
            raise
        return [listen(host, port)]


def open_comfyui_listeners(settings: Settings) -> list[socket.socket]:
    """Open the listening sockets of ComfyUI's API; none if it has no port."""
    return [] if settings.comfyui_api_port is None else open_listeners(settings.host, settings.comfyui_api_port)


def public_hosts(settings: Settings, allowed_hosts: Sequence[str]) -> list[str]:
    """Return the host names at which other machines can reach the desk."""
    return [*allowed_hosts, *([] if is_loopback(settings.host) else [settings.host])]
