"""Text that every database can keep: PostgreSQL takes no NUL, and nothing takes half of a surrogate pair.

What a user sends is refused for such a letter; what a worker says is cleaned, for a job must end whatever was printed.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def storable(value: Any) -> Any:
    """The JSON value with every letter that cannot be stored replaced."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {storable(key): storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    if is_dataclass(value):
        return {each.name: storable(getattr(value, each.name)) for each in fields(value)}
    return value
