"""The page password, for signing in from other machines."""

import asyncio
import hashlib
from pathlib import Path

from pwdlib.exceptions import PwdlibError

from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.server.http.cache import Cached
from comfyrelay.server.http.limits import RateLimit
from comfyrelay.services.accounts import passwords
from comfyrelay.services.accounts.sign_in import MAX_PASSWORD_LENGTH, MIN_PASSWORD_LENGTH, SignIn
from comfyrelay.system import atomic, files

PASSWORD_FILE = "page-password"
GUESSES_A_MINUTE = 10
# For all addresses together: a LAN has many, and the owner needs few attempts.
ALL_GUESSES_A_MINUTE = 60
_SESSION = "page, by password "


def set_password(data_dir: Path, password: str) -> Path:
    """Save its hash in a file for the owner only."""
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise InvalidInput(f"The password must have at least {MIN_PASSWORD_LENGTH} characters.")
    path = data_dir / PASSWORD_FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write(path, f"{passwords.HASHER.hash(password)}\n".encode(), mode=0o600)
    except OSError as error:
        raise ConfigurationError(f"The password cannot be kept in {path}: {error.strerror}.") from None
    return path


def remove_password(data_dir: Path) -> bool:
    """Remove it. Returns whether it existed."""
    try:
        files.remove(data_dir / PASSWORD_FILE)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigurationError(f"{data_dir / PASSWORD_FILE} cannot be removed: {error.strerror}.") from None
    return True


def has_password(data_dir: Path) -> bool:
    return _kept(data_dir) is not None


def require_password(data_dir: Path, *, host: str) -> None:
    """Raise `ConfigurationError` with the command that sets one, if none is set."""
    if not has_password(data_dir):
        raise ConfigurationError(
            f"Others could reach the desk at {host}, so the page needs a password first. Set one with: "
            f"comfyrelay password --data-dir {data_dir}"
        )


def is_by_password(session: str) -> bool:
    """Whether a session with this name was created with a password."""
    return session.startswith(_SESSION)


class Sessions:
    """Validates sessions: one created with a password is valid while that password is."""

    def __init__(self, sign_in: SignIn, data_dir: Path) -> None:
        self._name_of = Cached(sign_in.token_name)
        self._data_dir = data_dir

    async def name_of(self, secret: str) -> str | None:
        """Name of the session with this secret, or `None` if it is no longer valid."""
        name = await self._name_of(secret) or ""
        if not is_by_password(name):
            return name
        kept = _kept(self._data_dir)
        return name if kept is not None and name == _session(kept) else None


class Password:
    """Read again for each attempt, because it may change while the desk runs."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._guesses = RateLimit(GUESSES_A_MINUTE)
        self._all_guesses = RateLimit(ALL_GUESSES_A_MINUTE)
        # hashing needs much memory by design
        self._turn = asyncio.Lock()

    async def session_for(self, guess: str, *, address: str) -> str | None:
        """Return the name for a session with this password, or `None` if it is wrong. Raises `TooManyRequests`."""
        self._guesses.check(address)
        self._all_guesses.check("all")
        async with self._turn:
            kept = await asyncio.to_thread(self._matching, guess[:MAX_PASSWORD_LENGTH])
        return None if kept is None else _session(kept)

    async def end_sessions_of_others(self, sign_in: SignIn, user: User) -> None:
        """End sessions that were created with an earlier password."""
        kept = await asyncio.to_thread(_kept, self._data_dir)
        current = None if kept is None else _session(kept)
        for token in await sign_in.list_tokens(user):
            if token.name.startswith(_SESSION) and token.name != current:
                await sign_in.revoke(user, token.id)

    def _matching(self, guess: str) -> str | None:
        kept = _kept(self._data_dir)
        try:
            is_right = kept is not None and passwords.HASHER.verify(guess, kept)
        except PwdlibError:
            # a hand-written file
            is_right = False
        return kept if is_right else None


def _kept(data_dir: Path) -> str | None:
    try:
        return (data_dir / PASSWORD_FILE).read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None


def _session(kept: str) -> str:
    return f"{_SESSION}{hashlib.sha256(kept.encode()).hexdigest()[:8]}"
