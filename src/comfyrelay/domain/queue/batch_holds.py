"""When one failure speaks for a whole batch: what would fail the rest alike holds it, until somebody resumes it."""

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import GraphError, GraphNotAllowed, GraphRefused, ModelUnreadable, NotInstalled

# What is missing, or cannot be read, is so for all that need it, also if it was there before.
_MISSING = frozenset({NotInstalled.code, ModelUnreadable.code})
# A graph with a mistake in it fails always; where another item has completed, the mistake is in this one's own values.
_WRONG_GRAPH = frozenset({GraphRefused.code, GraphError.code, GraphNotAllowed.code})


def may_hold(code: str | None) -> bool:
    """Whether a failure of this code can be one that the rest of its batch would share."""
    return code in _MISSING or code in _WRONG_GRAPH


def holds_the_rest(code: str | None, *, has_completed: bool) -> bool:
    """`has_completed` says whether an item with the same nodes and models has completed."""
    return code in _MISSING or (code in _WRONG_GRAPH and not has_completed)


def hold_text(error: str) -> str:
    """Why a batch is held, for its user."""
    sentence = user_sentence(error)
    stop = "" if sentence.endswith((".", "!", "?", "…")) else "."
    return f"Held: an item failed, and the others would fail alike. {sentence}{stop} Mend that, then resume."
