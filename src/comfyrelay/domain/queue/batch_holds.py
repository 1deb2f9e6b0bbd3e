"""Decide whether a failed item holds its batch: pause the rest until a user resumes it."""

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import GraphError, GraphNotAllowed, GraphRefused, ModelUnreadable, NotInstalled

# A missing or unreadable model or node fails every item that needs it, even if earlier items completed.
_MISSING = frozenset({NotInstalled.code, ModelUnreadable.code})
# An invalid graph fails every item, unless one has completed: then the error is in the values of the failed item.
_WRONG_GRAPH = frozenset({GraphRefused.code, GraphError.code, GraphNotAllowed.code})


def can_hold_batch(code: str | None) -> bool:
    """Whether a failure with this code may hold its batch."""
    return code in _MISSING or code in _WRONG_GRAPH


def holds_batch(code: str | None, *, has_completed: bool) -> bool:
    """Whether a failure with this code holds its batch.

    `has_completed`: an item with the same nodes and models has completed.
    """
    return code in _MISSING or (code in _WRONG_GRAPH and not has_completed)


def hold_text(error: str) -> str:
    """Return the text that tells the user why the batch is held."""
    sentence = user_sentence(error)
    stop = "" if sentence.endswith((".", "!", "?", "…")) else "."
    return f"On hold: one item failed, and the others would fail the same way. {sentence}{stop} Fix this, then resume."
