"""The owner's secret of a desk: in a file for its owner alone, where the owner's own programs find it.

The file is in the data folder. Which desk listens at which port is noted in the owner's state folder, so that a program
finds the data folder of the desk that it calls, wherever that is.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from comfyrelay import atomic
from comfyrelay.errors import ConfigurationError
from comfyrelay.lock import FolderLock
from comfyrelay.net import is_loopback

SECRET_FILE = "owner-secret"
SHORTEST_SECRET = 32


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


def secret_for(url: str) -> str | None:
    """The secret of the desk at this address, if it is one of ours and runs now.

    Anybody may listen at a port where no desk does, so the secret of one that has stopped is not handed out.
    """
    try:
        parts = urlsplit(url)
        if not is_loopback(parts.hostname or ""):
            return None
        noted = json.loads(_note(parts.port or 80).read_text("utf-8"))
        data_dir = Path(noted["data_dir"])
        if FolderLock(data_dir).holder() != str(noted["process"]):
            return None
        return (data_dir / SECRET_FILE).read_text("ascii").strip() or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def noted(data_dir: Path, *, port: int) -> Iterator[None]:
    """Let the owner's programs know that this process's desk listens at a port; it must hold the folder's lock."""
    path = _note(port)
    content = json.dumps({"data_dir": str(data_dir), "process": os.getpid()}).encode()
    # a home that cannot be written is no reason not to start: the secret can be named by hand
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write(path, content, mode=0o600)
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_bytes() == content:
                path.unlink()


def state_folder() -> Path:
    """What is the owner's, on this machine, whichever data folder is used."""
    given = os.environ.get("XDG_STATE_HOME")
    return (Path(given) if given else Path("~/.local/state").expanduser()) / "comfyrelay"


def _note(port: int) -> Path:
    return state_folder() / f"desk-{port}.json"
