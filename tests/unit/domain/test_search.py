"""Searches understand words, quoted words and excluded words."""

import pytest

from comfyrelay.domain.search import MAX_SEARCH_TERMS, parse_search
from comfyrelay.errors import InvalidInput


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", []),
        ("  red   fox ", ["red", "fox"]),
        ('"red fox"', ["red fox"]),
        ('a "red  fox" -dog', ["a", "red fox", "-dog"]),
        ('-"a dog" cat', ["-a dog", "cat"]),
        ('"red fo', ["red fo"]),
        ('"" - -', ["-", "-"]),
        ("--x", ["--x"]),
        ("well-lit", ["well-lit"]),
        ('"-5"', ["-5"]),
        ('6" nails', ['6"', "nails"]),
    ],
)
def test_search_is_split_into_terms(search: str, found: list[str]) -> None:
    terms = parse_search(search)
    shown = [f"-{term.text}" if term.is_excluded else term.text for term in terms]
    assert shown == found


def test_quoted_minus_excludes_nothing() -> None:
    assert not parse_search('"-5"')[0].is_excluded
    assert parse_search("-5")[0].is_excluded


def test_number_of_terms_is_limited() -> None:
    assert len(parse_search("a " * MAX_SEARCH_TERMS)) == MAX_SEARCH_TERMS
    with pytest.raises(InvalidInput):
        parse_search("a " * (MAX_SEARCH_TERMS + 1))
