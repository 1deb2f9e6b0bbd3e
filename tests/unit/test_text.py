"""Untrusted text is harmless in a database and on a terminal, and texts are formatted for users."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.text import counted, excerpt, is_storable, one_line, printable, storable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m \x1b[2J", "red "),
        ("\x1b]0;title\x07text", "text"),
        ("bell\x07 and\x00nul", "bell andnul"),
        ("two\nlines\r\nand more", "two lines  and more"),
        ("a\ttab", "a\ttab"),
        ("left\u202eright", "left right"),
        ("half \ud800", "half  "),
        ("a black cat \U0001f408\u200d\u2b1b", "a black cat \U0001f408\u200d\u2b1b"),
    ],
)
def test_terminal_text_is_one_line_without_escape_sequences(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("bell\x07 and \x1b[1;31mred\x1b[0m", "bell and red"),
        ("left\u202eright\u202c \u2067more\u2069", "leftright more"),
        ("two\nlines\u2028and\ta tab", "two lines and a tab"),
        ("שלום\u200f! می\u200cشود", "שלום\u200f! می\u200cشود"),
        ("\U0001f408\u200d\u2b1b \u2764\ufe0f", "\U0001f408\u200d\u2b1b \u2764\ufe0f"),
        ("\x07", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_label_is_one_line_without_control_or_bidirectional_characters(text: str, kept: str) -> None:
    assert one_line(text) == kept
    assert excerpt(f"so {text}\x1b[2J\u202e", length=100) == " ".join(f"so {kept}".split()).rstrip(" \ufffd")


@given(st.text(st.characters(codec=None)))
def test_printable_text_can_be_encoded_and_has_no_control_characters(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not any(each < " " and each != "\t" for each in shown)


@given(st.text(st.characters(codec=None)))
def test_storable_text_keeps_its_length(text: str) -> None:
    kept = storable({"key": [text]})["key"][0]
    assert is_storable(kept)
    assert len(kept) == len(text)
    assert kept == text or not is_storable(text)


@pytest.mark.parametrize("text", ["a" * 50, "a lake at night, seen from the hills", "one two " * 20])
@pytest.mark.parametrize("length", [1, 5, 20])
def test_excerpt_is_not_longer_than_its_length(text: str, length: int) -> None:
    short = excerpt(text, length=length)
    assert len(short) <= length
    assert short.endswith("…")


@pytest.mark.parametrize(("count", "text"), [(0, "0 jobs"), (1, "1 job"), (2000, "2,000 jobs")])
def test_nouns_follow_their_count(count: int, text: str) -> None:
    assert counted(count, "job") == text
