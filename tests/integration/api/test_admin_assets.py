"""Files of effects and workflows: an upload is temporary until it is saved, and a saved file never changes."""

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.clock import utc_now
from comfyrelay.services.catalogue import assets
from comfyrelay.services.catalogue.assets import FOLDER, NOT_UPLOADED, UPLOADS
from tests.support.api import Api, data_of, problem_of
from tests.support.api_calls import png
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.storage import paths_in
from tests.support.world import GRAPH, PROMPT

pytestmark = pytest.mark.both_databases

LOGO = {"key": "logo", "type": "image", "placeholder": "{{INPUT}}"}
BLUE = png("blue")
# The signature covers the size, so both files have the same size.
RED = bytes(len(BLUE))
EFFECT = {"slug": "cat", "workflow_slug": "swap", "credits_cost": 3}


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    desk = await open_operator_scenario(api)
    body = {"slug": "swap", "graph": GRAPH, "properties": [PROMPT, LOGO], "output_node_id": "3"}
    await desk.send("POST", "/workflows", body)
    return desk


async def announce(desk: OperatorScenario) -> Any:
    body = {"mime_type": "image/png", "size": len(BLUE), "original_filename": "logo.png"}
    return await desk.send("POST", "/assets", body)


async def put(desk: OperatorScenario, asset: Any, data: bytes) -> None:
    sent = await desk.api.anonymous.http.put(asset["upload_url"], content=data, headers=asset["upload_headers"])
    assert sent.is_success, sent.text


async def save(desk: OperatorScenario, kind: str, path: str, slug: str = "cat") -> Any:
    """Save a file as a preview, an override or a default; return the response."""
    if kind == "default":
        return await desk.call("PATCH", "/workflows/swap", {"properties": [PROMPT, {**LOGO, "default_value": path}]})
    more = {"preview_path": path} if kind == "preview" else {"property_overrides": {"logo": path}}
    return await desk.call("POST", "/effects", {**EFFECT, "slug": slug, **more})


def path_of(saved: Any) -> str:
    logo = [prop for prop in saved.get("properties", ()) if prop["key"] == "logo"]
    path: str = saved.get("preview_path") or (logo[0]["default_value"] if logo else saved["property_overrides"]["logo"])
    return path


KINDS = pytest.mark.parametrize("kind", ["preview", "override", "default"])


@KINDS
async def test_upload_url_cannot_replace_a_saved_file(desk: OperatorScenario, kind: str) -> None:
    asset = await announce(desk)
    await put(desk, asset, BLUE)
    path = path_of(data_of(await save(desk, kind, asset["path"])))
    assert path.startswith(FOLDER)
    assert desk.admin.user is not None
    other = (await desk.api.user("other@example.com", is_admin=True)).user
    assert other is not None
    await desk.api.engine.accounts.tenancy.change_user(desk.admin.user.id, is_admin=False, by=other)
    await put(desk, asset, RED)
    assert await desk.api.engine.objects.get(path) == BLUE


@KINDS
async def test_file_that_was_not_sent_cannot_be_saved(desk: OperatorScenario, kind: str) -> None:
    asset = await announce(desk)
    problem = problem_of(await save(desk, kind, asset["path"]), 422)
    field = {"preview": "preview_path", "override": "property_overrides.logo", "default": "properties.1.default_value"}
    assert problem["errors"] == {field[kind]: NOT_UPLOADED}


async def test_saved_file_has_its_hash(desk: OperatorScenario) -> None:
    asset = await announce(desk)
    await put(desk, asset, BLUE)
    await save(desk, "override", asset["path"])
    view = await desk.api.engine.catalogue.effects.get("cat")
    path = view.effect.property_overrides["logo"]
    assert view.effect.asset_hashes == {path: hashlib.sha256(BLUE).hexdigest()}


async def test_refused_change_leaves_no_file(desk: OperatorScenario) -> None:
    asset = await announce(desk)
    await put(desk, asset, BLUE)
    data_of(await save(desk, "override", asset["path"]))
    stored = await paths_in(desk.api.engine.objects, FOLDER.rstrip("/"))
    problem_of(await save(desk, "override", asset["path"]), 409)
    assert await paths_in(desk.api.engine.objects, FOLDER.rstrip("/")) == stored


async def test_upload_can_be_saved_twice(desk: OperatorScenario) -> None:
    asset = await announce(desk)
    await put(desk, asset, BLUE)
    paths = {path_of(data_of(await save(desk, kind, asset["path"], slug=kind))) for kind in ("preview", "override")}
    assert len(paths) == 2
    for path in paths:
        assert await desk.api.engine.objects.get(path) == BLUE


async def test_abandoned_uploads_are_removed(desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, abandoned = await announce(desk), await announce(desk)
    for asset in (saved, abandoned):
        await put(desk, asset, BLUE)
    path = path_of(data_of(await save(desk, "override", saved["path"])))
    assert (await desk.api.engine.operations.retention.run_once()).assets == 0
    later = utc_now() + timedelta(hours=desk.api.engine.settings.unused_upload_hours)
    monkeypatch.setattr(assets, "utc_now", lambda: later)
    assert (await desk.api.engine.operations.retention.run_once()).assets == 2
    assert await paths_in(desk.api.engine.objects, UPLOADS) == []
    assert await desk.api.engine.objects.get(path) == BLUE
