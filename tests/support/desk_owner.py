"""Who owns a desk, as plain HTTP has it."""

from typing import Any

import httpx

from comfyrelay.system.owner_secret import pass_for


def owner_http(url: str, **options: Any) -> httpx.AsyncClient:
    """Calls of the desk's owner, without the ways of our own client."""
    found = pass_for(url)
    assert found is not None, f"No desk of ours runs at {url}."
    headers = {"Authorization": f"Bearer {found.secret}"}
    return httpx.AsyncClient(base_url=url, headers=headers, **{"timeout": 30, **options})
