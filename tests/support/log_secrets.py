"""Find secrets in logs: every secret that a test process generates is recorded, and every log line is searched.

Processes append their secrets to one file. Each line is split into long words, which are compared by their ends, so the
search takes a few microseconds per line for any number of secrets.
"""

import base64
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TypeVar

import uuid_utils
from structlog.typing import EventDict, WrappedLogger

T = TypeVar("T", str, bytes)
# The environment variable that names the file with the secrets of this run.
VARIABLE = "TESTS_SECRETS_FILE"
# Shorter values from `secrets` are ids, such as machine names.
MIN_LENGTH = 32
# The id of a zip of outputs may be logged with the request path, because only its user can download the zip.
ZIP_BYTES = 24
TAIL = 20
_WORD = re.compile(rf"[A-Za-z0-9_-]{{{TAIL},}}")
# Constants that tests use as secrets of every kind, and that no process generates.
CONSTANTS = (
    "correct horse battery",
    "fleet-secret-of-production",
    "an-older-secret-of-production",
    "fleet-secret-of-staging",
    "a-signing-secret-of-the-tests",
    "a-secret-key-for-tests",
)
_SIGNED = re.compile(r"(?:X-Amz-Signature|X-Amz-Credential|[?&]signature)=(?!…)", re.I)


# The first line since the last search that has a word with this end.
_words: dict[str, str] = {}
_lines: list[str] = []
# The ends of all recorded secrets, and the number of bytes read from the file.
_tails: set[str] = set()
_read_bytes = [0]


def install() -> None:
    """Record the secrets that this process generates from now on."""
    if VARIABLE not in os.environ:
        return
    for name in ("token_hex", "token_urlsafe", "token_bytes"):
        original = getattr(secrets, name)
        recorded = _recorded(original)
        for module in [*sys.modules.values()]:
            if module.__dict__.get(name) is original:
                setattr(module, name, recorded)
    make = uuid_utils.uuid4

    def uuid4() -> uuid_utils.UUID:
        made = make()
        add(str(made))
        return made

    # Lease tokens
    uuid_utils.uuid4 = uuid4


def _recorded(make: Callable[[int | None], T]) -> Callable[[int | None], T]:
    @wraps(make)
    def recorded(size: int | None = None) -> T:
        made = make(size)
        if size == ZIP_BYTES:
            return made
        if isinstance(made, str):
            add(made)
        else:
            add(base64.b64encode(made).decode(), base64.urlsafe_b64encode(made).decode(), made.hex())
        return made

    return recorded


def add(*made: str) -> None:
    text = "".join(f"{secret.rstrip('=')}\n" for secret in made if len(secret) >= MIN_LENGTH)
    if text and (path := os.environ.get(VARIABLE)):
        with Path(path).open("a", encoding="ascii") as file:
            file.write(text)


def search(_logger: WrappedLogger, _method: str, line: EventDict | str) -> EventDict | str:
    """Record a rendered line, as the last structlog processor."""
    note([str(line)])
    return line


def note(lines: Iterable[str]) -> None:
    """Remember the words of these lines until the next `violations`."""
    for line in lines:
        if _SIGNED.search(line) or any(secret in line for secret in CONSTANTS):
            _lines.append(line)
        for word in _WORD.findall(line):
            _words.setdefault(word[-TAIL:], line)


def violations() -> list[str]:
    """Return the lines since the last call that contain a secret."""
    if _words:
        _read_secrets()
    found = {*_lines, *(_words[tail] for tail in _words.keys() & _tails)}
    _lines.clear()
    _words.clear()
    return sorted(found)


def _read_secrets() -> None:
    path = Path(os.environ.get(VARIABLE, ""))
    if path.is_file():
        with path.open("rb") as file:
            file.seek(_read_bytes[0])
            # The last line may be incomplete.
            text = file.read().rpartition(b"\n")[0]
        _read_bytes[0] += len(text)
        _tails.update(secret[-TAIL:] for secret in text.decode("ascii").split())
