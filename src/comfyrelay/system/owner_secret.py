"""The secret of a desk's owner, in a private file of the data folder.

The owner's own programs do not need this secret: a running desk writes a note with its address and a temporary secret
to the state folder. The temporary secret is valid only while the desk's process runs.
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
MIN_SECRET_LENGTH = 32
_NOTE_PATTERN = "desk-*.json"


def load_secret(data_dir: Path) -> str:
    """Read the secret of the desk in this folder, or create the secret on the first start."""
    path = data_dir / SECRET_FILE
    try:
        atomic.write_new(path, f"{secrets.token_urlsafe(32)}\n".encode(), mode=0o600)
        path.chmod(0o600)
        found = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The owner's secret in {path} cannot be read: {error}.") from None
    if len(found) < MIN_SECRET_LENGTH:
        raise ConfigurationError(f"The owner's secret in {path} is too short. Delete the file and start again.")
    return found


@dataclass(frozen=True, slots=True)
class Pass:
    """The temporary secret of a running desk, valid only for its address."""

    host: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunningDesk:
    """A running desk of this user."""

    url: str
    data_dir: Path

    def __str__(self) -> str:
        return f"{self.url} (data in {self.data_dir})"


def running_desks() -> list[RunningDesk]:
    """Return the running desks of this user on this machine."""
    notes = (_read_note(path) for path in sorted(state_folder().glob(_NOTE_PATTERN)))
    return [RunningDesk(str(note["url"]), Path(note["data_dir"])) for note in notes if note is not None]


def pass_for(url: str) -> Pass | None:
    """Return the pass for the desk at this address, if a desk of this user runs there.

    At any other address, an unknown program may listen.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return None
    # `localhost` resolves to both addresses, and the desk may listen on only one of them.
    for address in ("127.0.0.1", "::1") if host == "localhost" else (host,):
        with suppress(ValueError):
            if (note := _read_note(_note_path(address, port))) is not None:
                return Pass(address, str(note["secret"]))
    return None


def _read_note(path: Path) -> Mapping[str, Any] | None:
    """Read the note of a desk; `None` if its process no longer holds the folder."""
    try:
        found = json.loads(path.read_text("utf-8"))
        is_alive = FolderLock(Path(found["data_dir"])).holder() == str(found["process"])
        return found if is_alive and found.keys() >= {"url", "secret"} else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@contextmanager
def desk_note(data_dir: Path, *, address: tuple[str, int], secret: str) -> Iterator[Callable[[], None]]:
    """Write the note of the desk in this process, which must hold the lock of the folder.

    The yielded function removes the note. Call it before the desk stops listening.
    """
    host, port = address
    path = _note_path(host, port)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    note = {"url": url, "data_dir": str(data_dir), "process": os.getpid(), "secret": secret}
    content = json.dumps(note).encode()

    def remove_note() -> None:
        with suppress(OSError):
            if path.read_bytes() == content:
                files.remove(path)

    # Start even if the home folder is read-only: the owner can still pass the secret as an argument.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write(path, content, mode=0o600)
    try:
        yield remove_note
    finally:
        remove_note()


def _note_path(host: str, port: int) -> Path:
    """Return the path of a note. Raises `ValueError` if the address is not a loopback address."""
    address = ip_address(host)
    if not address.is_loopback:
        raise ValueError(f"{host} is not a loopback address.")
    return state_folder() / f"desk-{str(address).replace(':', '_')}-{port}.json"
