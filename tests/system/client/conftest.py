"""Tests get a server with one worker, and a client for the server."""

from tests.support.client_site import site

__all__ = ["site"]
