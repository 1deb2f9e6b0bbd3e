"""Count the values of a JSON text before parsing it. The cost of parsing depends on values, not bytes."""

import re
from itertools import islice

# A string, or a character that starts another value. An unclosed string extends to the end of the text: otherwise the
# search would restart at each of its quotes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.S)


def has_more_values(body: bytes, limit: int) -> bool:
    """Whether a JSON text has more than `limit` values. Strings are skipped only if a plain count is too high."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= limit:
        return False
    values = (token for token in _TOKEN.finditer(body) if token[0][:1] != b'"')
    return next(islice(values, limit, None), None) is not None
