"""Count the operations of a function: lines of our code, and steps of its regular expressions.

Counts do not depend on the speed of the machine. Python's own engine does not count its steps, so `_Matcher` follows
the same backtracking rules, without its optimisations.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from re import _constants as op
from re import _parser
from types import FrameType, ModuleType
from typing import Any

import comfyrelay

_SOURCE = str(Path(comfyrelay.__file__).parent)
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    op.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    op.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    op.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}
Continue = Callable[[int], int | None]


class Counter:
    """Count lines and steps within the block of `within`."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def within(self, *modules: ModuleType) -> Iterator[None]:
        """Count the lines of our code, and the steps of all patterns of these modules."""
        replaced = [
            (module, name, value)
            for module in modules
            for name, value in vars(module).items()
            if isinstance(value, re.Pattern) or value is re
        ]
        for module, name, value in replaced:
            counted = CountedPattern(value, self) if isinstance(value, re.Pattern) else _CountedRe(self)
            setattr(module, name, counted)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            for module, name, value in replaced:
                setattr(module, name, value)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call" and not frame.f_code.co_filename.startswith(_SOURCE):
            return None
        if event == "line":
            self.count += 1
        return self._trace


class _CountedRe:
    """A replacement for the module `re`."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        plain = getattr(re, name)
        if name == "compile":
            return lambda *args: CountedPattern(re.compile(*args), self._counter)
        if name in ("findall", "finditer", "fullmatch", "match", "search", "split", "sub"):
            return lambda pattern, *args: getattr(CountedPattern(re.compile(pattern), self._counter), name)(*args)
        return plain


class CountedPattern:
    """A pattern that adds the steps of each search to a counter and returns the real result."""

    def __init__(self, pattern: "re.Pattern[Any]", counter: Counter) -> None:
        self._pattern = pattern
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._pattern, name)
        if not callable(plain):
            return plain

        def counted(*args: Any, **options: Any) -> Any:
            text = args[1] if name in ("sub", "subn") else args[0]
            start = args[1] if name in ("match", "search", "fullmatch") and len(args) > 1 else 0
            tracer = sys.gettrace()
            # Tracing would take longer than the steps themselves.
            sys.settrace(None)
            steps = count_steps(self._pattern, text, start, once=name in ("match", "fullmatch"), first=name == "search")
            sys.settrace(tracer)
            self._counter.count += steps
            return plain(*args, **options)

        return counted


def count_steps(
    pattern: "re.Pattern[Any]", text: Any, start: int = 0, *, once: bool = False, first: bool = False
) -> int:
    """Return the steps of matching at the start, of the first match, or of all matches."""
    plain = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    matcher = _Matcher(pattern, plain)
    at = start
    while at <= len(plain):
        end = matcher.end_of_match(at)
        if once or (first and end is not None):
            break
        at = at + 1 if end is None or end == at else end
    return matcher.steps


class _Matcher:
    def __init__(self, pattern: "re.Pattern[Any]", text: str) -> None:
        self._flags = pattern.flags
        self._tree = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
        self._text = text
        self._groups: dict[int, str] = {}
        self.steps = 0

    def end_of_match(self, at: int) -> int | None:
        return self._run(list(self._tree), 0, at, lambda end: end)

    def _run(self, items: Sequence[Any], number: int, at: int, then: Continue) -> int | None:  # noqa: PLR0911 - one per operation
        self.steps += 1
        if number == len(items):
            return then(at)
        kind, argument = items[number]

        def rest(end: int) -> int | None:
            return self._run(items, number + 1, end, then)

        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            return self._repeat(kind, argument, at, rest)
        if kind is op.BRANCH:
            return next((end for part in argument[1] if (end := self._run(list(part), 0, at, rest)) is not None), None)
        if kind is op.SUBPATTERN:
            group, _, _, part = argument
            return self._run(list(part), 0, at, lambda end: self._keep(group, at, end, rest))
        if kind is op.ATOMIC_GROUP:
            end = self._run(list(argument), 0, at, lambda inner: inner)
            return None if end is None else rest(end)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            return rest(at) if self._looks(argument, at) is (kind is op.ASSERT) else None
        if kind is op.AT:
            return rest(at) if self._is_at(argument, at) else None
        if kind is op.GROUPREF:
            known = self._groups.get(argument, "")
            self.steps += len(known)
            return rest(at + len(known)) if self._text.startswith(known, at) else None
        return rest(at + 1) if at < len(self._text) and self._fits(kind, argument, self._text[at]) else None

    def _keep(self, group: int | None, start: int, end: int, rest: Continue) -> int | None:
        if group is not None:
            self._groups[group] = self._text[start:end]
        return rest(end)

    def _repeat(self, kind: Any, argument: Any, at: int, rest: Continue) -> int | None:
        low, high, part = argument
        items = list(part)
        ends = [at]
        limit = len(self._text) + 1 if high is op.MAXREPEAT else int(high)
        if kind is op.MIN_REPEAT:
            while True:
                if len(ends) > low and (end := rest(ends[-1])) is not None:
                    return end
                following = self._run(items, 0, ends[-1], lambda inner: inner) if len(ends) <= limit else None
                if following is None:
                    return None
                ends.append(following)
        while len(ends) <= limit:
            following = self._run(items, 0, ends[-1], lambda inner: inner)
            if following is None or following == ends[-1]:
                break
            ends.append(following)
        if kind is op.POSSESSIVE_REPEAT:
            return rest(ends[-1]) if len(ends) > low else None
        # Backtrack into the last repetition as a whole, because it may end elsewhere.
        while len(ends) > low:
            if (end := rest(ends[-1])) is not None:
                return end
            ends.pop()
            if ends and not _is_single(items) and len(ends) >= low:
                again = self._run(items, 0, ends[-1], rest)
                if again is not None:
                    return again
        return None

    def _looks(self, argument: Any, at: int) -> bool:
        direction, part = argument
        if direction > 0:
            return self._run(list(part), 0, at, lambda end: end) is not None
        width = part.getwidth()[0]
        return at >= width and self._run(list(part), 0, at - width, lambda end: end if end == at else None) is not None

    def _is_at(self, where: Any, at: int) -> bool:
        text, is_lines = self._text, bool(self._flags & re.MULTILINE)
        if where in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
            word = _CATEGORIES[op.CATEGORY_WORD]
            is_boundary = (at > 0 and word(text[at - 1])) is not (at < len(text) and word(text[at]))
            return is_boundary is (where is op.AT_BOUNDARY)
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return at == 0 or (is_lines and where is op.AT_BEGINNING and text[at - 1] == "\n")
        is_end = at == len(text)
        if where is op.AT_END_STRING:
            return is_end
        return is_end or (text[at] == "\n" and (is_lines or at == len(text) - 1))

    def _fits(self, kind: Any, argument: Any, char: str) -> bool:
        if kind is op.ANY:
            return bool(self._flags & re.DOTALL) or char != "\n"
        chars = {char, char.lower(), char.upper()} if self._flags & re.IGNORECASE else {char}
        if kind is op.LITERAL:
            return any(ord(one) == argument for one in chars if len(one) == 1)
        if kind is op.NOT_LITERAL:
            return all(ord(one) != argument for one in chars if len(one) == 1)
        assert kind is op.IN, kind
        is_negated = argument[0][0] is op.NEGATE
        found = any(_in_set(one, item) for one in chars if len(one) == 1 for item in argument[is_negated:])
        return found is not is_negated


def _is_single(items: Sequence[Any]) -> bool:
    return len(items) == 1 and items[0][0] in (op.ANY, op.IN, op.LITERAL, op.NOT_LITERAL)


def _in_set(char: str, item: Any) -> bool:
    kind, argument = item
    if kind is op.LITERAL:
        return bool(ord(char) == argument)
    if kind is op.RANGE:
        return bool(argument[0] <= ord(char) <= argument[1])
    assert kind is op.CATEGORY, kind
    return _CATEGORIES[argument](char)
