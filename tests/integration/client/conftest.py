"""Fixtures: a server with one worker, and its client."""

from tests.support.client_site import site

__all__ = ["site"]
