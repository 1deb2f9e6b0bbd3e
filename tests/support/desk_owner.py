"""Call a desk as its owner with plain HTTP."""

from typing import Any

import httpx

from comfyrelay.system.owner_secret import pass_for


def owner_http(url: str, **options: Any) -> httpx.AsyncClient:
    """Return an HTTP client with the secret of the owner."""
    found = pass_for(url)
    assert found is not None, f"No desk of ours runs at {url}."
    headers = {"Authorization": f"Bearer {found.secret}"}
    return httpx.AsyncClient(base_url=url, headers=headers, **{"timeout": 30, **options})
