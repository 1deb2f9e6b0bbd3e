"""Find placeholders in texts, in time proportional to the text.

Users choose both the names and the texts. A regular expression with one alternative per name compares each of them at
each character: 200 names of 200 letters take hours for a text of a million.
"""

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

# Only a few automata with more characters are cached, because each may need 10 MB.
_SMALL_LENGTH = 5000


class Placeholders:
    """An Aho-Corasick automaton of the reversed names.

    The automaton reads a text backwards, so that at each character, it knows the longest name that begins there.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(filter(None, names))
        self._steps: dict[tuple[int, str], int] = {}
        # For each state: the next state to try if no step fits, and the length of the longest name that ends here.
        self._fallback, self._longest = [0], [0]
        for name in self.names:
            self._add(name)
        self._link()
        ends = "".join(re.escape(char) for char in sorted({name[-1] for name in self.names}))
        self._end = re.compile(f"[{ends}]") if ends else None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each placeholder from left to right. If several begin at one place, use the
        longest."""
        starts, lengths = self._all(text)
        after = 0
        for start, length in zip(reversed(starts), reversed(lengths), strict=True):
            if start >= after:
                after = start + length
                yield start, after

    def found_in(self, texts: Iterable[str]) -> set[str]:
        """Return the names that occur in the texts."""
        return {text[start:end] for text in texts for start, end in self.spans(text)}

    def replace(self, text: str, value_of: Callable[[str], str]) -> str:
        parts, at = [], 0
        for start, end in self.spans(text):
            parts += [text[at:start], value_of(text[start:end])]
            at = end
        return "".join([*parts, text[at:]]) if parts else text

    def _add(self, name: str) -> None:
        state = 0
        for char in reversed(name):
            if (state, char) not in self._steps:
                self._steps[state, char] = len(self._longest)
                self._fallback.append(0)
                self._longest.append(0)
            state = self._steps[state, char]
        self._longest[state] = len(name)

    def _link(self) -> None:
        """Set the fallback of each state: the state of its longest proper suffix."""
        children: dict[int, list[tuple[str, int]]] = {}
        for (state, char), child in self._steps.items():
            children.setdefault(state, []).append((char, child))
        pending = deque(child for _, child in children.get(0, ()))
        while pending:
            state = pending.popleft()
            for char, child in children.get(state, ()):
                self._fallback[child] = self._next(self._fallback[state], char)
                self._longest[child] = self._longest[child] or self._longest[self._fallback[child]]
                pending.append(child)

    def _next(self, state: int, char: str) -> int:
        while (state, char) not in self._steps:
            if not state:
                return 0
            state = self._fallback[state]
        return self._steps[state, char]

    def _all(self, text: str) -> tuple["array[int]", "array[int]"]:
        """Return the starts of all placeholders in reverse order, and the length of the longest placeholder at each
        start."""
        # Two arrays, because a list of tuples would take a hundred bytes per character.
        starts, lengths = array("q"), array("q")
        if self._end is None:
            return starts, lengths
        step, fallback, longest = self._steps.get, self._fallback, self._longest
        backwards, size, state, at = text[::-1], len(text), 0, 0
        while at < size:
            if not state:
                # Most texts contain few characters that end a name.
                found = self._end.search(backwards, at)
                if found is None:
                    break
                at = found.start()
            char = backwards[at]
            while (following := step((state, char))) is None and state:
                state = fallback[state]
            state = following or 0
            at += 1
            if longest[state]:
                starts.append(size - at)
                lengths.append(longest[state])
        return starts, lengths


_small = lru_cache(maxsize=256)(Placeholders)
_large = lru_cache(maxsize=8)(Placeholders)


def placeholders_of(names: Iterable[str]) -> Placeholders:
    """Return the automaton of these names from a cache."""
    wanted = frozenset(names)
    return (_small if sum(map(len, wanted)) <= _SMALL_LENGTH else _large)(wanted)
