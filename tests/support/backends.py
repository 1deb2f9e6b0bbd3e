"""Choose the databases of a folder: SQLite, and PostgreSQL for tests marked `both_databases` and with `--full`.

The conftest.py of the folder imports both names.
"""

import pytest

from tests.support import full
from tests.support.world import PostgresBackend, SqliteBackend

__all__ = ["backend", "pytest_generate_tests"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        on_both = full.is_enabled or metafunc.definition.get_closest_marker("both_databases") is not None
        metafunc.parametrize("backend", ["sqlite", "postgresql"] if on_both else ["sqlite"], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> SqliteBackend | PostgresBackend:
    name = "sqlite_backend" if request.param == "sqlite" else "postgres_backend"
    found: SqliteBackend | PostgresBackend = request.getfixturevalue(name)
    return found
