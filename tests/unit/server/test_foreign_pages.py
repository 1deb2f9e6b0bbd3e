"""Refused requests from foreign pages."""

import gc
import weakref

import pytest
from starlette.requests import HTTPConnection

from comfyrelay.errors import Forbidden
from comfyrelay.server.comfyui_api.routing import refuse_foreign_pages


def test_refused_request_is_not_kept_in_memory() -> None:
    connection = HTTPConnection({"type": "http", "headers": [(b"origin", b"http://evil.example")]})
    kept = weakref.ref(connection)
    with pytest.raises(Forbidden):
        refuse_foreign_pages(connection)
    del connection
    gc.collect()
    assert kept() is None
