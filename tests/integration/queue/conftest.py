"""Queue tests run on SQLite; modules and tests marked `both_databases` also run on PostgreSQL."""

from tests.support.backends import backend, pytest_generate_tests

__all__ = ["backend", "pytest_generate_tests"]
