"""Split and quote command lines by the rules of this system."""

import shlex
import subprocess

from comfyrelay.system.platform import IS_WINDOWS


def split(text: str) -> list[str]:
    """Split a command line into words. Raises `ValueError` if a quote is not closed."""
    words = shlex.shlex(text, posix=True, punctuation_chars=False)
    words.whitespace_split = True
    words.commenters = ""
    if IS_WINDOWS:
        # On Windows, backslashes separate folders, and only double quotes count as quotes.
        words.escape, words.quotes = "", '"'
    return list(words)


def quoted(word: str) -> str:
    """Quote one word of a command line."""
    return subprocess.list2cmdline([word]) if IS_WINDOWS else shlex.quote(word)


def setting_line(name: str, value: str) -> str:
    """Return a shell command that sets an environment variable; on Windows, for the command prompt."""
    return f'set "{name}={value}"' if IS_WINDOWS else f"export {name}={shlex.quote(value)}"
