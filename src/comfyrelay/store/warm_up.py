"""Compile the frequent statements before the first request needs them. No database is involved."""

import sys
from collections.abc import Iterator
from inspect import isclass, signature
from typing import Any

from sqlalchemy import Executable

from comfyrelay.store.transaction import compile_once

_PACKAGE = __name__.rpartition(".")[0]


def compile_statements(dialect: str) -> int:
    """Compile the statements of all imported modules of this package. Return their number.

    For SQLite, the statements are only built: SQLAlchemy compiles them with the first parameters.
    """
    found = [build for build in _functions_of_dialect() if isinstance(build(dialect), Executable)]
    if dialect == "postgresql":
        for build in found:
            compile_once(build)
    return len(found)


def _functions_of_dialect() -> Iterator[Any]:
    """Yield the functions whose only argument is a dialect."""
    # Iterate over copies, because other threads may import modules in the meantime.
    imported = list(sys.modules.items())
    for module in [module for name, module in imported if name.startswith(f"{_PACKAGE}.") and name != __name__]:
        for value in list(vars(module).values()):
            is_own = callable(value) and not isclass(value) and getattr(value, "__module__", "") == module.__name__
            if is_own and [name.lstrip("_") for name in signature(value).parameters] == ["dialect"]:
                yield value
