"""The web app is served with its scripts; while it is not built, a page says how to build it."""

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from runpy import run_path
from unittest.mock import patch

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from comfyrelay.web import app_files
from comfyrelay.web.app_files import PAGES, is_page, make_router, not_found_page
from tests.support.paths import ROOT

SERVER_PAGES = ("/studio/effects/clip", "/wallet", "/console/workers", "/sign-in", "/sign-up", "/reset/abc", "/setup")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    for page in {*PAGES.values()}:
        (tmp_path / f"{page}.html").write_text(f'<script src="/assets/{page}-1.js" nonce="__NONCE__"></script>')
    (tmp_path / "assets" / "a-1.js").write_text("1")
    (tmp_path / "built-from.txt").write_text("x")
    return tmp_path


async def get_path(folder: Path, path: str, *origins: str, accepted: str = "gzip") -> httpx.Response:
    app = FastAPI()

    async def storage_origins(_request: Request) -> Sequence[str]:
        return origins

    app.include_router(make_router(storage_origins))
    transport = httpx.ASGITransport(app)
    with patch.object(app_files, "APP", folder):
        async with httpx.AsyncClient(transport=transport, base_url="http://desk") as http:
            return await http.get(path, headers={"Accept-Encoding": accepted})


@pytest.mark.parametrize(
    ("path", "area"),
    [
        ("/", "queue"),
        ("/create", "create"),
        ("/queue", "queue"),
        ("/gallery", "gallery"),
        ("/kit", "index"),
        ("/jobs/123", "job"),
        *((page, "index") for page in SERVER_PAGES),
    ],
)
async def test_page_serves_the_scripts_of_its_area(built: Path, path: str, area: str) -> None:
    assert is_page(path)
    answer = await get_path(built, path)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-cache")
    assert f"/assets/{area}-1.js" in answer.text


async def test_inline_scripts_and_styles_need_the_nonce(built: Path) -> None:
    first, second = [await get_path(built, "/", "https://bucket.example.com") for _ in range(2)]
    policy = first.headers["Content-Security-Policy"]
    [nonce] = re.findall(r"'nonce-([\w-]+)'", policy)
    assert f'nonce="{nonce}"' in first.text
    assert nonce not in second.text
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "data:" not in policy
    assert "media-src 'self' blob: https://bucket.example.com;" in policy


async def test_hashed_files_are_cached_forever(built: Path) -> None:
    assert "immutable" in (await get_path(built, "/assets/a-1.js")).headers["Cache-Control"]


async def test_precompressed_file_is_sent_if_the_client_accepts_it(built: Path) -> None:
    (built / "assets" / "a-1.js.gz").write_bytes(gzip.compress(b"1"))
    answer = await get_path(built, "/assets/a-1.js")
    assert (answer.text, answer.headers["Content-Encoding"]) == ("1", "gzip")
    assert answer.headers["Content-Type"].startswith("text/javascript")
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert (await get_path(built, "/assets/a-1.js.gz")).status_code == 404
    plain = await get_path(built, "/assets/a-1.js", accepted="identity")
    assert (plain.text, plain.headers.get("Content-Encoding")) == ("1", None)


@pytest.mark.parametrize("path", ["/assets/b.js", "/assets/..%2Fbuilt-from.txt", "/assets/..%2Findex.html", "/nowhere"])
async def test_other_paths_are_not_served(built: Path, path: str) -> None:
    assert (await get_path(built, path)).status_code == 404


async def test_browser_gets_the_app_for_an_unknown_address(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_files, "APP", built)

    async def no_origins(_request: Request) -> Sequence[str]:
        return ()

    async def answer_to(path: str, accept: str, method: str = "GET") -> Response | None:
        headers = [(b"accept", accept.encode())]
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        return await not_found_page(Request(scope), no_origins)

    page = await answer_to("/nowhere", "text/html,*/*;q=0.8")
    assert page is not None
    assert (page.status_code, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert b"/assets/index-1.js" in bytes(page.body)
    for program in (("/nowhere", "*/*"), ("/api/nowhere", "text/html"), ("/nowhere", "text/html", "POST")):
        assert await answer_to(*program) is None


async def test_page_of_an_unbuilt_app_names_the_build_command(tmp_path: Path) -> None:
    answer = await get_path(tmp_path, "/queue")
    assert answer.status_code == 503
    assert "make up" in answer.text


def test_schema_of_the_app_matches_the_routes() -> None:
    written = run_path(str(ROOT / "ui" / "openapi.py"))
    assert written["PLACE"].read_text("utf-8") == written["schema"](), "run `make schema`"


def test_lock_file_names_no_host() -> None:
    assert "://" not in (ROOT / "ui" / "pnpm-lock.yaml").read_text("utf-8")
