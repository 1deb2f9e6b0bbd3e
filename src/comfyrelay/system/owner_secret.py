"""The owner's secret of a desk: in a file for its owner alone, where the owner finds it.

The file is in the data folder. The owner's own programs need it not: a desk that runs notes in the owner's state folder
at which address it listens, with a secret that ends with its process and is worth nothing to who listens there later.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from comfyrelay.errors import ConfigurationError
from comfyrelay.system import atomic, files
from comfyrelay.system.folder_lock import FolderLock
from comfyrelay.system.user_folders import state_folder

SECRET_FILE = "owner-secret"
SHORTEST_SECRET = 32
_NOTES = "desk-*.json"


def load_secret(data_dir: Path) -> str:
    """The secret of the desk in this folder, made at its first start."""
    path = data_dir / SECRET_FILE
    try:
        atomic.write_new(path, f"{secrets.token_urlsafe(32)}\n".encode(), mode=0o600)
        path.chmod(0o600)
        found = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The owner's secret in {path} cannot be read: {error}.") from None
    if len(found) < SHORTEST_SECRET:
        raise ConfigurationError(f"The owner's secret in {path} is too short. Remove the file: a start makes another.")
    return found


@dataclass(frozen=True, slots=True)
class Pass:
    """What lets the owner's programs in: a secret that lives as long as the desk's process, for this address alone."""

    host: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunningDesk:
    """A desk of this user that runs now."""

    url: str
    data_dir: Path

    def __str__(self) -> str:
        return f"{self.url} (data in {self.data_dir})"


def running() -> list[RunningDesk]:
    """The desks of this user that run on this machine now, whichever port and folder they have."""
    notes = (_read(each) for each in sorted(state_folder().glob(_NOTES)))
    return [RunningDesk(str(each["url"]), Path(each["data_dir"])) for each in notes if each is not None]


def pass_for(url: str) -> Pass | None:
    """The pass to the desk at this address, if it is one of ours and runs now.

    Anybody may listen at an address where no desk does, also one with the same port.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return None
    # a name leads to either, and only one of them may be the desk's
    hosts = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    return next((found for each in hosts if (found := _pass(each, port)) is not None), None)


def _pass(host: str, port: int) -> Pass | None:
    try:
        found = _read(_note(host, port))
    except ValueError:
        return None
    return None if found is None else Pass(host, str(found["secret"]))


def _read(note: Path) -> Mapping[str, Any] | None:
    """What a desk noted; nothing once its process no longer holds the folder."""
    try:
        found = json.loads(note.read_text("utf-8"))
        is_alive = FolderLock(Path(found["data_dir"])).holder() == str(found["process"])
        return found if is_alive and found.keys() >= {"url", "secret"} else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@contextmanager
def noted(data_dir: Path, *, address: tuple[str, int], secret: str) -> Iterator[Callable[[], None]]:
    """Let the owner's programs know that this process's desk listens at an address, and how they get in there.

    The process must hold the folder's lock. What is given takes the note away: before the desk stops to listen.
    """
    path = _note(*address)
    host, port = address
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    note = {"url": url, "data_dir": str(data_dir), "process": os.getpid(), "secret": secret}
    content = json.dumps(note).encode()

    def forget() -> None:
        with suppress(OSError):
            if path.read_bytes() == content:
                files.remove(path)

    # a home that cannot be written is no reason not to start: the secret can be named by hand
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write(path, content, mode=0o600)
    try:
        yield forget
    finally:
        forget()


def _note(host: str, port: int) -> Path:
    """`ValueError` for what is no address of this machine itself."""
    address = ip_address(host)
    if not address.is_loopback:
        raise ValueError(f"{host} is not on this machine alone.")
    return state_folder() / f"desk-{str(address).replace(':', '_')}-{port}.json"
