"""Parse and quote command lines as this system writes them."""

import shlex
import subprocess

from comfyrelay.system.platform import pick


def split(text: str) -> list[str]:
    """Split a command line into words; `ValueError` if a quote is not closed."""
    words = shlex.shlex(text, posix=True, punctuation_chars=False)
    words.whitespace_split = True
    words.commenters = ""
    # on Windows, backslashes separate folders and only double quotes exist
    words.escape = pick(windows="", macos=words.escape, others=words.escape)
    words.quotes = pick(windows='"', macos=words.quotes, others=words.quotes)
    return list(words)


def quoted(word: str) -> str:
    """Quote one word of a command line."""
    plain = shlex.quote(word)
    return pick(windows=subprocess.list2cmdline([word]), macos=plain, others=plain)


def setting_line(name: str, value: str) -> str:
    """Return a shell command that sets an environment variable; on Windows, for the command prompt."""
    plain = f"export {name}={shlex.quote(value)}"
    return pick(windows=f'set "{name}={value}"', macos=plain, others=plain)
