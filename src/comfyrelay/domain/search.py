"""The syntax of search fields: words, `"quoted words"` and `-word`."""

import re
from dataclasses import dataclass

from comfyrelay.errors import InvalidInput

MAX_SEARCH_TERMS = 10
# The second quote is missing while the user is typing.
_TERM = re.compile(r'(?P<minus>-?)"(?P<phrase>[^"]*)"?|(?P<word>\S+)')


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchText:
    """A text that must occur, or with `is_excluded` must not occur."""

    text: str
    is_excluded: bool = False


def parse_search(search: str) -> tuple[SearchText, ...]:
    """Return the texts of a search. All conditions must hold. A lone `-` is a word."""
    found = []
    for match in _TERM.finditer(search):
        word = match["word"]
        if word is None:
            text, is_excluded = " ".join(match["phrase"].split()), bool(match["minus"])
        else:
            is_excluded = len(word) > 1 and word.startswith("-")
            text = word[1:] if is_excluded else word
        if text:
            found.append(SearchText(text=text, is_excluded=is_excluded))
    if len(found) > MAX_SEARCH_TERMS:
        raise InvalidInput(errors={"q": f"Search for at most {MAX_SEARCH_TERMS} words."})
    return tuple(found)
