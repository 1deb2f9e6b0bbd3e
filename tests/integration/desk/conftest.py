"""A desk in this process, and one with its page."""

from tests.support.desk import desk, soon_back
from tests.system.browser.conftest import desk_url

__all__ = ["desk", "desk_url", "soon_back"]
