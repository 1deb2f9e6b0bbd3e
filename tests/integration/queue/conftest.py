"""The queue on both databases.

Tests marked `any_database` check rules above the store, and run on PostgreSQL only with `--full`. The marker
`both_databases` exempts a test of such a module.
"""

import pytest

from tests.support import full
from tests.support.backends import backend

__all__ = ["backend", "pytest_generate_tests"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        get_marker = metafunc.definition.get_closest_marker
        on_both = full.is_enabled or get_marker("both_databases") or not get_marker("any_database")
        metafunc.parametrize("backend", ["sqlite", "postgresql"] if on_both else ["sqlite"], indirect=True)
