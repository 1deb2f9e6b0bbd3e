"""Placeholders are found as a regular expression would find them, but in time proportional to the text."""

import re

from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.graphs import placeholders
from comfyrelay.comfyui.graphs.placeholders import Placeholders, placeholders_of
from tests.support.operations import Counter

LETTERS = "ab]^-\\"
NAMES = st.sets(st.text(LETTERS, max_size=5), max_size=6)


@given(NAMES, st.text(LETTERS, max_size=40))
def test_placeholders_match_like_the_longest_alternative(names: set[str], text: str) -> None:
    ordered = sorted(filter(None, names), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, ordered)) or r"\b\B")
    assert list(Placeholders(names).spans(text)) == [found.span() for found in pattern.finditer(text)]
    assert Placeholders(names).found_in([text]) == set(pattern.findall(text))
    assert Placeholders(names).replace(text, str.upper) == pattern.sub(lambda found: found[0].upper(), text)


def test_work_does_not_grow_with_the_number_and_length_of_names() -> None:
    text = "a" * 2000
    counts = []
    for names in ([f"{'a' * 9}b"], [f"{'a' * (100 + number)}b" for number in range(100)]):
        wanted, counter = Placeholders(names), Counter()
        with counter.within(placeholders):
            assert wanted.found_in([text, f"{text}b"]) == ({names[-1]})
        counts.append(counter.count)
    # The longer names need more fallback steps only once, at the end of the text.
    assert counts[1] <= counts[0] + 10 * 200


def test_same_names_share_one_automaton() -> None:
    assert placeholders_of(["{{A}}", "{{B}}"]) is placeholders_of(["{{B}}", "{{A}}"])
