"""Text from others does no harm, neither in a database nor on a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.text import is_storable, printable, storable


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
def test_a_terminal_is_shown_one_line_and_nothing_to_obey(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)))
def test_what_is_printed_can_be_encoded_and_moves_no_cursor(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not any(each < " " and each != "\t" for each in shown)


@given(st.text(st.characters(codec=None)))
def test_what_is_stored_is_storable_and_as_long_as_it_was(text: str) -> None:
    kept = storable({"key": [text]})["key"][0]
    assert is_storable(kept)
    assert len(kept) == len(text)
    assert kept == text or not is_storable(text)
