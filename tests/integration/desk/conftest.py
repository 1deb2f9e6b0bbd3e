"""A desk in this process, and one with its page."""

from tests.support.desk import desk, fast_reconnect
from tests.system.browser.conftest import desk_url

__all__ = ["desk", "desk_url", "fast_reconnect"]
