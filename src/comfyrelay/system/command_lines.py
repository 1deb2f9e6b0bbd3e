"""Command lines as people write them on this system: read, and shown to be typed."""

import shlex
import subprocess

from comfyrelay.system.platform import pick


def split(text: str) -> list[str]:
    """The words of a command line; `ValueError` when a quote is not closed."""
    words = shlex.shlex(text, posix=True, punctuation_chars=False)
    words.whitespace_split = True
    words.commenters = ""
    # on Windows backslashes part folders, and only one kind of quotes is known
    words.escape = pick(windows="", macos=words.escape, others=words.escape)
    words.quotes = pick(windows='"', macos=words.quotes, others=words.quotes)
    return list(words)


def quoted(word: str) -> str:
    """One word of a line that is to be typed."""
    plain = shlex.quote(word)
    return pick(windows=subprocess.list2cmdline([word]), macos=plain, others=plain)


def setting_line(name: str, value: str) -> str:
    """A line that sets a variable for what is started next; on Windows, in its command prompt."""
    plain = f"export {name}={shlex.quote(value)}"
    return pick(windows=f'set "{name}={value}"', macos=plain, others=plain)
