"""Tests use a desk in this process."""

from tests.support.desk import desk, fast_reconnect

__all__ = ["desk", "fast_reconnect"]
