"""Exhaustive parameters: `pytest --full`, which `make test-all` passes, runs them.

They repeat a rule that a smaller parameter already checks: all crash cases on both databases, upgrades from every
revision, long random walks, thousands of jobs.
"""

from typing import TypeVar

T = TypeVar("T")

is_enabled = False


def full_only(*values: T) -> tuple[T, ...]:
    """Return these parameters with `--full`, otherwise none."""
    return values if is_enabled else ()
