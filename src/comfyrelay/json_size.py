"""How much a JSON text would cost to parse, found out before it is parsed: that goes by its values, not its bytes."""

import re

# A text as a whole, or what separates and holds values.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[,\[{]', re.S)


def has_more_values(body: bytes, most: int) -> bool:
    """Whether it has more values than these. Texts may hold commas, so they are stepped over where it matters."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= most:
        return False
    values = 0
    for found in _TOKEN.finditer(body):
        values += found[0][:1] != b'"'
        if values > most:
            return True
    return False
