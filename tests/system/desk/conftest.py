"""A desk in this process."""

from tests.support.desk import desk, soon_back

__all__ = ["desk", "soon_back"]
