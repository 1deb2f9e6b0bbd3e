"""Models that a form of the desk offers: pictures and trigger words from ComfyUI's own routes."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from PIL import Image

from comfyrelay.desk.models import browser
from comfyrelay.domain.properties import Property, PropertyType
from comfyrelay.simulator import Simulator
from tests.support.desk import make_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import words
from tests.support.model_folder import INK, LORA_GRAPH, LORAS, MODELS, write_models

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class ModelForm:
    """The form of a workflow with a LoRA on a desk with one ComfyUI."""

    http: httpx.AsyncClient
    simulator: Simulator
    slug: str
    field: str

    async def get(self, part: str = "", **query: Any) -> httpx.Response:
        named = {"workflow_slug": self.slug, "field": self.field, **query}
        return await self.http.get(f"/api/desk/models{part}", params=named)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def form(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelForm]:
    folder: Path = tmp_path_factory.mktemp("comfyui")
    write_models(folder)
    with pytest.MonkeyPatch.context() as patch:
        # Tests stop ComfyUI, so nothing may be cached.
        patch.setattr(browser, "CACHE_SECONDS", 0.0)
        async with _open_form(folder, tmp_path_factory.mktemp("desk")) as opened:
            yield opened


@asynccontextmanager
async def _open_form(folder: Path, data: Path) -> AsyncIterator[ModelForm]:
    async with (
        Simulator(folder=folder, models=MODELS) as simulator,
        make_desk(data, comfyui_url=simulator.url, shutdown_seconds=0).open() as (_w, ready),
        owner_http(ready.url) as http,
    ):
        added = (await http.post("/api/workflows", json={"graph": LORA_GRAPH, "name": "inked"})).json()["data"]
        [field] = [field["key"] for field in added["properties"] if "lora" in field["key"] and field["role"] == "model"]
        yield ModelForm(http=http, simulator=simulator, slug=added["slug"], field=field)


async def test_field_lists_only_the_models_of_its_own_folder(form: ModelForm) -> None:
    found = (await form.get()).json()["data"]["items"]
    assert [model["name"] for model in found] == list(LORAS)


async def test_picture_next_to_a_model_is_shown(form: ModelForm) -> None:
    answer = await form.get("/picture", name=LORAS[0])
    assert answer.headers["Content-Type"] == "image/png"
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    colour = Image.open(io.BytesIO(answer.content)).convert("RGB").getpixel((0, 0))
    assert colour == tuple(bytes.fromhex(INK[1:]))


async def test_model_without_a_picture_is_not_found(form: ModelForm) -> None:
    answer = await form.get("/picture", name=LORAS[1])
    assert (answer.status_code, answer.json()["detail"]) == (404, "This model has no picture.")


@pytest.mark.parametrize(
    ("name", "title", "trigger_words"),
    [
        (LORAS[0], "Ink wash", ["inkwash"]),
        (LORAS[1], "anna-v2", ["anna person", "red hair"]),
        (LORAS[2], None, []),
    ],
)
async def test_trigger_words_come_from_the_header_of_the_file(
    form: ModelForm, name: str, title: str | None, trigger_words: list[str]
) -> None:
    answer = await form.get("/metadata", name=name)
    assert answer.json()["data"] == {"title": title, "trigger_words": trigger_words}


@pytest.mark.parametrize("part", ["/picture", "/metadata"])
@pytest.mark.parametrize(
    "name",
    [
        "simulator.safetensors",
        "../secret.safetensors",
        "people/../ink.safetensors",
        "/etc/passwd",
        "http://attacker.example/x.safetensors",
    ],
)
async def test_name_that_the_field_does_not_offer_is_not_sent_to_comfyui(form: ModelForm, part: str, name: str) -> None:
    form.simulator.log.requests.clear()
    answer = await form.get(part, name=name)
    assert (answer.status_code, answer.json()["detail"]) == (404, browser.NO_MODEL)
    sent = [request.path for request in form.simulator.log.requests]
    assert not [path for path in sent if "preview" in path or "view_metadata" in path]


async def test_field_that_names_no_model_is_refused(form: ModelForm) -> None:
    added = (await form.http.post("/api/workflows", json={"graph": words("a hill"), "name": "words"})).json()["data"]
    [key] = [field["key"] for field in added["properties"] if field["type"] == "text"]
    answer = await form.get(workflow_slug=added["slug"], field=key)
    assert answer.status_code == 422
    assert answer.json()["errors"] == {"field": f"The field '{key}' does not name a model."}
    assert (await form.get(field="nothing")).status_code == 404
    assert (await form.get(workflow_slug="nothing")).status_code == 404


async def test_pictures_of_a_list_share_one_listing(form: ModelForm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "CACHE_SECONDS", 3600.0)
    models = browser.ModelBrowser(lambda: [form.simulator.url])
    field = Property(key="lora", type=PropertyType.CHOICE, placeholder="x", choices=LORAS)
    form.simulator.log.requests.clear()
    for _picture in range(3):
        assert (await models.picture(field, LORAS[0])).media_type == "image/png"
    assert form.simulator.log.count("GET", "/models") == 1
    assert form.simulator.log.count("GET", "/experiment/models/loras") == 1


async def test_comfyui_that_does_not_answer_lists_no_models(form: ModelForm) -> None:
    await form.simulator.stop()
    try:
        assert (await form.get()).json()["data"]["items"] == []
        assert (await form.get("/metadata", name=LORAS[0])).status_code == 404
    finally:
        await form.simulator.start()
    assert len((await form.get()).json()["data"]["items"]) == len(LORAS)
