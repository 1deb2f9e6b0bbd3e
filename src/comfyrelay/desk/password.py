"""Set and check the password of the page, for signing in from other machines."""

import asyncio
import hashlib
from pathlib import Path

from pwdlib.exceptions import PwdlibError

from comfyrelay.domain.credentials import MAX_PASSWORD_LENGTH, password_problem
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.server.http.cache import Cached
from comfyrelay.server.http.limits import SignInLimit
from comfyrelay.services.accounts import passwords
from comfyrelay.services.accounts.sign_in import SignIn
from comfyrelay.system import atomic, files

PASSWORD_FILE = "page-password"
ATTEMPTS_PER_MINUTE = 10
_SESSION_PREFIX = "page, by password "


def set_password(data_dir: Path, password: str) -> Path:
    """Save the hash of a password in a file that only the owner can read."""
    if (problem := password_problem(password)) is not None:
        raise InvalidInput(problem, errors={"password": problem})
    path = data_dir / PASSWORD_FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write(path, f"{passwords.HASHER.hash(password)}\n".encode(), mode=0o600)
    except OSError as error:
        raise ConfigurationError(f"The password cannot be saved in {path}: {error.strerror}.") from None
    return path


def remove_password(data_dir: Path) -> bool:
    """Remove the password. Returns whether one was set."""
    try:
        files.remove(data_dir / PASSWORD_FILE)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigurationError(f"{data_dir / PASSWORD_FILE} cannot be removed: {error.strerror}.") from None
    return True


def has_password(data_dir: Path) -> bool:
    return _read_hash(data_dir) is not None


def require_password(data_dir: Path, *, host: str) -> None:
    """Raise `ConfigurationError` with the command that sets a password, if none is set."""
    if not has_password(data_dir):
        raise ConfigurationError(
            f"Other machines could reach the desk at {host}, so the page needs a password first. Set one with: "
            f"comfyrelay password --data-dir {data_dir}"
        )


def is_by_password(session: str) -> bool:
    """Whether a session with this name was created with a password."""
    return session.startswith(_SESSION_PREFIX)


class Sessions:
    """Validates sessions. A session created with a password is valid until that password changes."""

    def __init__(self, sign_in: SignIn, data_dir: Path) -> None:
        self._name_of = Cached(sign_in.token_name)
        self._data_dir = data_dir

    async def name_of(self, secret: str) -> str | None:
        """Return the name of the session with this secret, or `None` if it is no longer valid."""
        name = await self._name_of(secret) or ""
        return name if not is_by_password(name) or name == _session_name(_read_hash(self._data_dir)) else None

    async def is_of_owner(self, secret: str) -> bool:
        """Whether this secret is the owner's, and not the session of a guest."""
        return not is_by_password(await self._name_of(secret) or "")


class Password:
    """Checks the password. Its hash is read for each attempt, because it may change while the desk runs."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._attempts = SignInLimit(ATTEMPTS_PER_MINUTE)
        # Hashing needs much memory by design, so at most one runs at a time.
        self._lock = asyncio.Lock()

    async def session_for(self, attempt: str, *, address: str) -> str | None:
        """Return the name for a session with this password, or `None` if it is wrong. Raises `TooManyRequests`."""
        self._attempts.check(address, "owner")
        async with self._lock:
            matching = await asyncio.to_thread(self._matching_hash, attempt[:MAX_PASSWORD_LENGTH])
        return _session_name(matching)

    async def end_outdated_sessions(self, sign_in: SignIn, user: User) -> None:
        """End sessions that were created with a previous password."""
        current = _session_name(await asyncio.to_thread(_read_hash, self._data_dir))
        for token in await sign_in.list_tokens(user):
            if is_by_password(token.name) and token.name != current:
                await sign_in.revoke(user, token.id)

    def _matching_hash(self, attempt: str) -> str | None:
        saved = _read_hash(self._data_dir)
        try:
            return saved if saved is not None and passwords.HASHER.verify(attempt, saved) else None
        except PwdlibError:
            # The file was edited by hand.
            return None


def _read_hash(data_dir: Path) -> str | None:
    try:
        return (data_dir / PASSWORD_FILE).read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None


def _session_name(password_hash: str | None) -> str | None:
    if password_hash is None:
        return None
    return f"{_SESSION_PREFIX}{hashlib.sha256(password_hash.encode()).hexdigest()[:8]}"
