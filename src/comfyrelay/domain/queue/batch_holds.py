"""Decide whether a failed item holds its batch: pause the rest until a user resumes it."""

import re
from collections.abc import Sequence

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import GraphError, GraphNotAllowed, GraphRefused, ModelUnreadable, NotInstalled

# A missing or unreadable model or node fails every item that needs it, even if earlier items completed.
_MISSING = frozenset({NotInstalled.code, ModelUnreadable.code})
# An invalid graph fails every item, unless one has completed: then the error is in the values of the failed item.
_WRONG_GRAPH = frozenset({GraphRefused.code, GraphError.code, GraphNotAllowed.code})
# Any other failure holds its batch once this many consecutive items have failed for the same reason.
MAX_EQUAL_FAILURES = 3
# Parts of messages that may differ for the same reason: numbers with units, and quoted names, such as names of inputs.
_VARIABLE = re.compile(r"""(?<!\w)(["'`])[^"'`]*\1(?!\w)|\d+(?:[.,]\d+)*(?:\s?[KMGT]i?B\b)?""")


def holds_batch(code: str | None, *, has_completed: bool) -> bool:
    """Whether a failure with this code holds its batch.

    `has_completed`: an item with the same nodes and models has completed.
    """
    return code in _MISSING or (code in _WRONG_GRAPH and not has_completed)


def is_repeated(error: str, before: Sequence[str | None]) -> bool:
    """Whether this failure and the failures of the items that ended `before` it have the same reason."""
    reason = _reason(error)
    is_same = all(text is not None and _reason(text) == reason for text in before)
    return is_same and len(before) >= MAX_EQUAL_FAILURES - 1


def _reason(error: str) -> str:
    """Return the message without the numbers and names that differ between items."""
    return _VARIABLE.sub("…", user_sentence(error))


def hold_text(error: str, *, failures: int = 1) -> str:
    """Return the text that tells the user why the batch is held."""
    sentence = user_sentence(error)
    stop = "" if sentence.endswith((".", "!", "?", "…")) else "."
    cause = (
        "one item failed, and the others would fail the same way"
        if failures == 1
        else f"{failures} items in a row failed for the same reason"
    )
    return f"On hold: {cause}. {sentence}{stop} Fix this, then resume."
