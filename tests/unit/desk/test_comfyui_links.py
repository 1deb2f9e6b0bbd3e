"""A job links to its ComfyUI only if the browser can reach that server."""

from typing import Any

import pytest

from comfyrelay.desk.batches.run_files import about_run
from comfyrelay.desk.comfyui_links import comfyui_link
from comfyrelay.domain.queue.settlement import Attempt

LOCAL, OTHER = "http://127.0.0.1:8188", "http://192.168.1.20:8188"


def attempt(url: str | None, number: int = 1) -> Attempt:
    about = None if url is None else {"comfyui": url}
    return Attempt(
        job_id="j", epoch=1, tenant_id="t", number=number, worker_id="desk", started_at=None, ended_at=None, about=about
    )


def link(*attempts: Attempt, **options: Any) -> str | None:
    defaults: dict[str, Any] = {
        **{"urls": [LOCAL, OTHER], "public_urls": [], "unreachable": []},
        **{"is_managed": False, "is_local": False},
    }
    return comfyui_link(attempts, **{**defaults, **options})


@pytest.mark.parametrize(
    ("url", "options", "found"),
    [
        (LOCAL, {"is_local": True}, LOCAL),
        (LOCAL, {}, None),
        (OTHER, {}, OTHER),
        (LOCAL, {"public_urls": ["https://comfy.home"]}, "https://comfy.home"),
        ("http://localhost:8188", {"urls": ["http://localhost:8188"]}, None),
        ("http://127.0.0.1:9999", {"is_local": True}, None),
        ("http://127.0.0.1:9999", {"is_local": True, "is_managed": True}, LOCAL),
        ("http://127.0.0.1:9999", {"is_managed": True}, None),
        ("http://127.0.0.1:9999", {"is_managed": True, "urls": []}, None),
        (OTHER, {"unreachable": [f"ComfyUI at {OTHER} cannot be used: It does not respond."]}, None),
        (None, {"is_local": True}, None),
    ],
)
def test_link_depends_on_browser_and_address(url: str | None, options: dict[str, Any], found: str | None) -> None:
    assert link(attempt(url), **options) == found


def test_link_leads_to_the_comfyui_of_the_last_attempt() -> None:
    assert link(attempt(LOCAL), attempt(OTHER, 2), is_local=True) == OTHER


def test_worker_cannot_report_the_address() -> None:
    assert about_run({"comfyui": "https://evil.example", "seed": 1}, {}) == {"seed": 1}
    assert about_run({"comfyui": "https://evil.example"}, {"comfyui": LOCAL}) == {"comfyui": LOCAL}
