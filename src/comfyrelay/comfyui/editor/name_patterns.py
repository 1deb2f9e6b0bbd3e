"""Search titles and names with the regular expressions of a workflow, within a limit of time.

Python's expressions backtrack: `(a+)+b` takes years for a title of a hundred letters.
"""

import re
from dataclasses import dataclass, field

from comfyrelay.errors import GraphError

_MAX_PATTERN, _MAX_NAME = 300, 100
# Ways to match starting at one character, and steps of all searches in a workflow.
_MAX_WAYS, _MAX_STEPS = 200_000, 50_000_000
_QUANTIFIER = re.compile(r"[*+?]|\{[\d,]")
# Groups with a quantifier, backreferences, and special groups.
_UNSAFE = re.compile(r"\)[*+?{]|\\[1-9k]|\(\?(?!:)")
_ESCAPED = re.compile(r"\\[^1-9k]|\[(?:\\.|[^\]\\])*\]|\(\?:")


class PatternBudget:
    """Compiles the patterns of one workflow and limits their total search time."""

    def __init__(self) -> None:
        self.steps = 0

    def pattern(self, text: object, is_inverted: object) -> "NamePattern | None":
        """Return a compiled pattern, or `None` if the text matches everything or is not a regular expression."""
        if not isinstance(text, str) or text in ("", ".*"):
            return None
        ways = _count_ways(text)
        if ways > _MAX_WAYS:
            raise GraphError(
                f'The regular expression "{text[:60]}" of a Use Everywhere node is too complex. Simplify it, or '
                "replace the node's links with real links in the editor."
            )
        try:
            return NamePattern(re.compile(text, re.ASCII), bool(is_inverted), ways, self)
        except re.error:
            return None

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _MAX_STEPS:
            raise GraphError("The regular expressions of the Use Everywhere nodes take too long. Simplify them.")


@dataclass(frozen=True, slots=True)
class NamePattern:
    expression: re.Pattern[str]
    is_inverted: bool
    ways: int
    budget: PatternBudget
    _known: dict[str, bool] = field(default_factory=dict)

    def is_found_in(self, text: str) -> bool:
        name = text[:_MAX_NAME]
        if name not in self._known:
            self.budget.spend(self.ways * (len(name) + 1))
            self._known[name] = (self.expression.search(name) is not None) != self.is_inverted
        return self._known[name]


def _count_ways(text: str) -> int:
    """Return an upper bound on the number of ways in which a pattern can match starting at one character."""
    if len(text) > _MAX_PATTERN or _UNSAFE.search(text):
        return _MAX_WAYS + 1
    # Brackets count as one character.
    plain = _ESCAPED.sub("x", text)
    pipes, quantifiers = plain.count("|"), len(_QUANTIFIER.findall(plain))
    alternatives = 2**pipes if "(" in text else pipes + 1
    return int(alternatives * (_MAX_NAME + 1) ** min(quantifiers, 10))
