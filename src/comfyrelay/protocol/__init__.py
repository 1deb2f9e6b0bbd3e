"""Wire models of the server, its workers and its clients.

Receivers ignore unknown fields, so that either side may be newer. Only requests to the user and admin APIs are strict:
an unknown field is an error.
"""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import a module of this package on first use: building models takes time, and each caller uses few of them."""
    full_name = f"{__name__}.{name}"
    try:
        return import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
