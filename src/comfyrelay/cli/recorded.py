"""Record the changes of commands that use the databases directly in the audit log."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comfyrelay.services.auditing import ChangeScope
    from comfyrelay.services.engine import Engine


def recorded(engine: Engine, name: str, kind: str, **keys: str) -> AbstractAsyncContextManager[ChangeScope]:
    """Record the changes inside the block, with the user and the machine that run this command. `kind` and `keys` name
    the changed object, as in the paths of the admin API."""
    return engine.audit.command(name, kind, keys, user=_user(), host=socket.gethostname())


def _user() -> str:
    try:
        # With sudo, the user who became root.
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may run with an id that has no name.
        return "unknown user"
