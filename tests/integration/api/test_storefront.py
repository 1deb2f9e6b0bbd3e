"""What visitors see before they sign in, and how an operator presents the server and its effects."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.errors import ConfigurationError
from comfyrelay.web.logo import MAX_BYTES, Logo
from tests.support.api import Api, open_api, problem_of
from tests.support.api_calls import png
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import GRAPH, PROMPT, Backend

EFFECT = {"workflow_slug": "swap", "credits_cost": 3}


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    desk = await open_operator_scenario(api)
    # Remove the effect of the scenario.
    await desk.send("DELETE", "/effects/clip")
    await desk.send("POST", "/workflows", {"slug": "swap", "graph": GRAPH, "properties": [PROMPT]})
    return desk


@pytest.fixture
async def branded(backend: Backend, tmp_path: Path) -> AsyncIterator[Api]:
    logo = tmp_path / "logo.svg"
    logo.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>', encoding="utf-8")
    presented: dict[str, Any] = {"studio_name": "Pixel Barn", "studio_logo": logo, "studio_color": "#2f6fed"}
    async with open_api(backend, tmp_path, sign_up="invitation", **presented) as api:
        yield api


async def upload(desk: OperatorScenario, data: bytes) -> str:
    body = {"mime_type": "image/png", "size": len(data), "original_filename": "example.png"}
    asset = await desk.send("POST", "/assets", body)
    await desk.api.anonymous.http.put(asset["upload_url"], content=data, headers=asset["upload_headers"])
    return str(asset["path"])


async def slugs_of(desk: OperatorScenario, **query: Any) -> list[str]:
    return [effect["slug"] for effect in (await desk.api.anonymous.get("/api/catalogue", params=query))["items"]]


async def test_visitors_see_published_effects_with_examples(desk: OperatorScenario) -> None:
    examples = {"preview_path": await upload(desk, png("blue")), "before_path": await upload(desk, png("red"))}
    about = {"description": "Paints your cat.", "category": "Cats"}
    await desk.send("POST", "/effects", {"slug": "cat", **EFFECT, **about, **examples})
    await desk.send("POST", "/effects", {"slug": "draft", **EFFECT, "is_active": False})
    [seen] = (await desk.api.anonymous.get("/api/catalogue"))["items"]
    assert {name: seen[name] for name in ("slug", "credits_cost", *about)} == {
        "slug": "cat",
        "credits_cost": 3,
        **about,
    }
    contents = [(await desk.api.anonymous.http.get(seen[name])).content for name in ("preview_url", "before_url")]
    assert contents == [png("blue"), png("red")]
    # Only users see workflows, inputs and processing times.
    assert not {"workflow_slug", "properties", "id", "last_processing_time_seconds"} & seen.keys()


async def test_effects_are_listed_by_position_and_then_by_age(desk: OperatorScenario) -> None:
    for slug, position in (("third", 5), ("first", 0), ("second", 0), ("fourth", 5)):
        await desk.send("POST", "/effects", {"slug": slug, **EFFECT, "position": position})
    assert await slugs_of(desk) == ["first", "second", "third", "fourth"]
    page = await desk.api.anonymous.get("/api/catalogue", params={"limit": 3})
    assert await slugs_of(desk, cursor=page["next_cursor"]) == ["fourth"]
    await desk.send("PATCH", "/effects/fourth", {"position": 1})
    assert await slugs_of(desk) == ["first", "second", "fourth", "third"]


async def test_description_category_and_examples_can_be_removed(desk: OperatorScenario) -> None:
    about = {"description": "Paints your cat.", "category": "Cats", "before_path": await upload(desk, png("red"))}
    await desk.send("POST", "/effects", {"slug": "cat", **EFFECT, **about})
    changed = await desk.send("PATCH", "/effects/cat", dict.fromkeys(about))
    assert [changed[name] for name in about] == [None, None, None]


@pytest.mark.parametrize(
    ("field", "value"),
    [("description", "x" * 1001), ("category", ""), ("position", -1), ("before_path", "../secrets.json")],
)
async def test_invalid_presentation_is_refused(desk: OperatorScenario, field: str, value: Any) -> None:
    refused = await desk.call("POST", "/effects", {"slug": "cat", **EFFECT, field: value})
    assert field in problem_of(refused, 422)["errors"]


async def test_server_without_open_sign_up_shows_no_effects_to_visitors(branded: Api) -> None:
    assert (await branded.anonymous.call("GET", "/api/catalogue")).status_code == 404


async def test_visitors_see_name_logo_and_color_of_the_operator(branded: Api) -> None:
    studio = (await branded.anonymous.get("/api/entry"))["studio"]
    assert (studio["name"], studio["color"], studio["imprint_url"]) == ("Pixel Barn", "#2f6fed", None)
    logo = await branded.anonymous.http.get(studio["logo_url"])
    assert (logo.status_code, logo.headers["content-type"]) == (200, "image/svg+xml")
    # The file may contain scripts.
    assert "sandbox" in logo.headers["content-security-policy"]


async def test_server_without_a_logo_has_no_logo_url(api: Api) -> None:
    assert (await api.anonymous.get("/api/entry"))["studio"]["logo_url"] is None
    assert (await api.anonymous.call("GET", "/api/logo")).status_code == 404


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("logo.html", b"x", "must be one of these"),
        ("logo.png", b"", "must have 1 to"),
        ("logo.png", bytes(MAX_BYTES + 1), "must have 1 to"),
        ("missing.png", None, "cannot be read"),
    ],
)
def test_unusable_logo_is_refused_at_the_start(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=problem):
        Logo.load(tmp_path / name)
