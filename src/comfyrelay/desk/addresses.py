"""Where a desk listens, found out before anything that takes long."""

import socket

from comfyrelay.desk.data_folder import refuse_second
from comfyrelay.errors import ConfigurationError
from comfyrelay.http_client import is_loopback, listen
from comfyrelay.settings import Settings

LOOPBACK = "127.0.0.1"


def require_free(settings: Settings) -> None:
    """`ConfigurationError` where a desk has this folder already, or somebody else the port."""
    refuse_second(settings.data_dir)
    for each in open_listeners(settings.host, settings.port):
        each.close()


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Where other machines find the desk, the owner's programs still find it at loopback: the first one. Nobody else
    must listen there, for it is there that they send their pass."""
    if is_loopback(host):
        return [listen(host, port)]
    own = listen(LOOPBACK, port)
    try:
        return [own, listen(host, port)]
    except ConfigurationError:
        own.close()
        # Linux lets nobody listen at all addresses and at one of them, so who has all of them has this one, too
        if host != "0.0.0.0":
            raise
        return [listen(host, port)]
