"""The API documentation in a browser works without the internet and under a content security policy."""

import asyncio
import re
from unittest.mock import Mock

import pytest
from pydantic_core import to_json

from comfyrelay.server.operations import docs
from tests.support.api import Api, problem_of

ELSEWHERE = re.compile(r"""(?:src|href|url)\s*[=:(]\s*["']?(?:https?:)?//""")


async def test_docs_page_loads_no_external_files(api: Api) -> None:
    user = await api.user()
    page = await user.call("GET", "/docs")
    assert page.status_code == 200
    assert not ELSEWHERE.search(page.text)
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(named) == 3
    for path in named:
        answer = await api.anonymous.call("GET", path)
        assert answer.status_code == 200, path
        assert answer.content
        assert not answer.headers["content-type"].startswith("text/html")
    assert (await user.call("GET", "/openapi.json")).json()["info"]["title"] == "ComfyRelay"


async def test_documentation_requires_a_session(api: Api) -> None:
    problem_of(await api.anonymous.call("GET", "/openapi.json"), 401)
    page = await api.anonymous.call("GET", "/docs")
    assert (page.status_code, page.headers["location"]) == (303, "/sign-in?to=/docs")


async def test_schema_is_serialized_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    user, serialize = await api.user(), Mock(side_effect=to_json)
    monkeypatch.setattr(docs, "to_json", serialize)
    answers = await asyncio.gather(*(user.call("GET", "/openapi.json") for _ in range(3)))
    assert serialize.call_count == 1
    [tag] = {answer.headers["etag"] for answer in answers}
    unchanged = await user.call("GET", "/openapi.json", headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


async def test_docs_page_runs_only_its_own_scripts(api: Api) -> None:
    user = await api.user()
    for path in ("/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js"):
        policy = (await user.call("GET", path)).headers["content-security-policy"]
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))


async def test_pages_with_external_scripts_are_disabled(api: Api) -> None:
    assert (await api.anonymous.call("GET", "/redoc")).status_code == 404
    assert (await api.anonymous.call("GET", "/docs/other.js")).status_code == 422
