"""The API documentation in a browser works without the internet and under a content security policy."""

import re

from tests.support.api import Api

ELSEWHERE = re.compile(r"""(?:src|href|url)\s*[=:(]\s*["']?(?:https?:)?//""")


async def test_docs_page_loads_no_external_files(api: Api) -> None:
    page = await api.anonymous.call("GET", "/docs")
    assert page.status_code == 200
    assert not ELSEWHERE.search(page.text)
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(named) == 3
    for path in named:
        answer = await api.anonymous.call("GET", path)
        assert answer.status_code == 200, path
        assert answer.content
        assert not answer.headers["content-type"].startswith("text/html")
    assert (await api.anonymous.call("GET", "/openapi.json")).json()["info"]["title"] == "ComfyRelay"


async def test_docs_page_runs_only_its_own_scripts(api: Api) -> None:
    for path in ("/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js"):
        policy = (await api.anonymous.call("GET", path)).headers["content-security-policy"]
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))


async def test_pages_with_external_scripts_are_disabled(api: Api) -> None:
    assert (await api.anonymous.call("GET", "/redoc")).status_code == 404
    assert (await api.anonymous.call("GET", "/docs/other.js")).status_code == 422
