"""A server with one worker, and a client for it."""

from tests.support.client_site import site

__all__ = ["site"]
