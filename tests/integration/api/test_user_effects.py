"""Effects without operator data, and graphs that users upload."""

from typing import Any

import pytest

from tests.support.api import Api, data_of, problem_of
from tests.support.api_calls import submit, upload
from tests.support.world import GRAPH

IMAGE = {"key": "photo", "type": "image", "placeholder": "{{INPUT}}", "required": True, "is_primary_input": True}
PROMPT = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "default_value": "a cat"}


async def rich_effect(api: Api, **more: Any) -> int:
    """An effect with inputs of all kinds."""
    await api.engine.catalogue.workflows.create(
        slug="rich",
        graph=GRAPH,
        properties=[
            {**PROMPT, "user_configurable": True},
            IMAGE,
            {"key": "mask", "type": "image", "placeholder": "M", "default_value": "catalogue/secret-mask.png"},
            {
                "key": "frame",
                "type": "image",
                "placeholder": "F",
                "default_value": "catalogue/frame.png",
                "user_configurable": True,
            },
            {
                "key": "steps",
                "type": "number",
                "placeholder": "S",
                "required": True,
                "user_configurable": True,
                "minimum": 1,
                "maximum": 50,
            },
            {"key": "model", "type": "text", "placeholder": "X", "default_value": "secret-model"},
        ],
    )
    effect = await api.engine.catalogue.effects.create(
        slug="rich", workflow_slug="rich", credits_cost=3, property_overrides={"prompt": "a dog", "steps": 20}, **more
    )
    return effect.id


class TestEffects:
    async def test_effect_shows_price_and_user_inputs(self, api: Api) -> None:
        id_ = await rich_effect(api)
        effect = await (await api.user()).get("/api/effects/rich")
        assert (effect["id"], effect["slug"], effect["credits_cost"]) == (id_, "rich", 3)
        assert effect["last_processing_time_seconds"] is None
        inputs = {each["key"]: each for each in effect["properties"]}
        assert set(inputs) == {"prompt", "photo", "frame", "steps"}
        assert inputs["prompt"]["default_value"] == "a dog"
        assert inputs["photo"]["is_primary_input"]
        assert inputs["photo"]["required"]
        assert (inputs["steps"]["minimum"], inputs["steps"]["maximum"]) == (1, 50)
        assert not inputs["steps"]["required"]  # set by the effect

    async def test_nothing_of_the_operators_is_shown(self, api: Api) -> None:
        await rich_effect(api)
        shown = (await (await api.user()).call("GET", "/api/effects")).text
        for secret in ("secret", "catalogue/", "{{PROMPT}}", "placeholder", "graph"):
            assert secret not in shown

    async def test_disabled_effect_is_404(self, api: Api) -> None:
        await rich_effect(api)
        user = await api.user()
        await api.engine.catalogue.workflows.set_active("rich", is_active=False)
        assert (await user.get("/api/effects"))["items"] == []
        problem_of(await user.call("GET", "/api/effects/rich"), 404)

    async def test_effects_are_paginated(self, api: Api) -> None:
        user = await api.user()
        await api.effect("a")
        await api.effect("b")
        first = await user.get("/api/effects?limit=1")
        second = await user.get(f"/api/effects?limit=1&cursor={first['next_cursor']}")
        assert [each["slug"] for each in (*first["items"], *second["items"])] == ["a", "b"]
        assert second["next_cursor"] is None

    @pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=-1", "cursor=x"])
    async def test_page_that_makes_no_sense_is_refused(self, api: Api, query: str) -> None:
        problem_of(await (await api.user()).call("GET", f"/api/effects?{query}"), 422)


class TestPrivateWorkflows:
    async def test_graph_can_be_brought_and_run(self, api: Api) -> None:
        user = await api.user()
        response = await user.call(
            "POST",
            "/api/workflows",
            {"name": "My Cats!", "graph": GRAPH, "properties": [PROMPT, IMAGE], "output_extension": "png"},
        )
        assert response.status_code == 201
        made = data_of(response)
        assert made["slug"].startswith("my-cats-")
        assert made["output_mime_type"] == "image/png"
        assert [each["key"] for each in made["properties"]] == ["prompt", "photo"]
        body = {"workflow_slug": made["slug"], "idempotency_key": "k", "input_payload": {"prompt": "a cow"}}
        job = await user.post("/api/ai-jobs", {**body, "input_file_id": await upload(user)})
        assert (job["status"], job["reserved_tokens"], job["effect_id"]) == ("queued", 0, None)

    async def test_own_workflow_is_private(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        slug = (await user.post("/api/workflows", {"graph": GRAPH, "properties": [PROMPT, IMAGE]}))["slug"]
        assert [each["slug"] for each in (await user.get("/api/workflows"))["items"]] == [slug]
        assert (await other.get("/api/workflows"))["items"] == []
        body = {"workflow_slug": slug, "idempotency_key": "k"}
        problem_of(await other.call("POST", "/api/ai-jobs", body), 404)
        problem_of(await other.call("DELETE", f"/api/workflows/{slug}"), 404)

    async def test_own_workflow_is_deletable_after_its_jobs(self, api: Api) -> None:
        user = await api.user()
        body = {"graph": GRAPH, "properties": [PROMPT, {**IMAGE, "required": False}]}
        slug = (await user.post("/api/workflows", body))["slug"]
        job = await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "k"})
        problem = problem_of(await user.call("DELETE", f"/api/workflows/{slug}"), 409)
        assert "cancel them first" in problem["detail"]
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        deleted = await user.call("DELETE", f"/api/workflows/{slug}")
        assert data_of(deleted) == {"id": slug}
        assert deleted.json()["message"] == "Deleted."
        assert (await user.get("/api/workflows"))["items"] == []
        assert (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] == "canceled"
        problem_of(await user.call("POST", "/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "l"}), 404)
        problem_of(await user.call("DELETE", f"/api/workflows/{slug}"), 404)
        problem_of(await user.call("PATCH", f"/api/workflows/{slug}", {"name": "again"}), 404)
        assert (await user.post("/api/workflows", body))["slug"] != slug

    @pytest.mark.parametrize(
        "name",
        [
            "/etc/passwd",
            "C:\\secrets",
            "../other/cat.png",
            "folder/../../cat.png",
            "cat.png [output]",
            "somebody-elses.png",
            "~/cat.png",
        ],
    )
    async def test_graph_may_not_name_files_of_the_worker(self, api: Api, name: str) -> None:
        graph = {"1": {"class_type": "LoadImage", "inputs": {"image": name}}}
        response = await (await api.user()).call("POST", "/api/workflows", {"graph": graph})
        assert problem_of(response, 422)["type"] == "urn:comfyrelay:graph_not_allowed"

    async def test_file_that_it_names_may_be_the_placeholder_of_an_input(self, api: Api) -> None:
        graph = {"1": {"class_type": "LoadImage", "inputs": {"image": "example.png"}}}
        body = {"graph": graph, "properties": [{**IMAGE, "placeholder": "example.png"}]}
        assert await (await api.user()).post("/api/workflows", body)

    @pytest.mark.parametrize("told", [{}, {"output_mime_type": "text/plain"}])
    async def test_graph_may_make_a_plain_text(self, api: Api, told: dict[str, str]) -> None:
        graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": "hello"}}}
        body = {"graph": graph, "output_extension": "txt", **told}
        made = await (await api.user()).post("/api/workflows", body)
        assert (made["output_extension"], made["output_mime_type"]) == ("txt", "text/plain")

    async def test_file_has_no_default_for_that_would_be_a_path_in_everybodys_storage(self, api: Api) -> None:
        stolen = {**IMAGE, "default_value": "tenants/another/uploads/private.png"}
        response = await (await api.user()).call("POST", "/api/workflows", {"graph": GRAPH, "properties": [stolen]})
        assert "photo" in problem_of(response, 422)["errors"]

    @pytest.mark.parametrize(
        "body",
        [
            {"graph": {}},
            {"graph": {"nodes": []}},
            {"graph": {"1": {"class_type": "X"}}},
            {"graph": {"1": {"class_type": "X", "inputs": {"text": "\u0000"}}}},
            {"graph": GRAPH, "output_node_id": "99"},
            {"graph": GRAPH, "output_extension": "../x"},
            {"graph": GRAPH, "output_extension": "html"},
            {"graph": GRAPH, "output_mime_type": "text/html"},
            {"graph": GRAPH, "output_extension": "html", "output_mime_type": "text/plain"},
            {"graph": GRAPH, "output_extension": "txt", "output_mime_type": "text/html"},
            {"graph": GRAPH, "output_extension": "txt", "output_mime_type": "text/plain-ish"},
            {"graph": GRAPH, "properties": [PROMPT, PROMPT]},
            {"graph": GRAPH, "properties": [{**PROMPT, "type": "number"}]},
            {"graph": GRAPH, "properties": [{**PROMPT, "minimum": "x"}]},
        ],
    )
    async def test_invalid_graph_is_refused(self, api: Api, body: dict[str, Any]) -> None:
        problem_of(await (await api.user()).call("POST", "/api/workflows", body), 422)


class TestPresets:
    async def test_inputs_are_kept_under_a_name(self, api: Api) -> None:
        user = await api.user()
        values = {"prompt": "a cat", "steps": 20, "nested": {"seed": 2**64 - 1}}
        made = await user.post("/api/presets", {"name": "production", "values": values})
        assert (await user.get("/api/presets"))["items"] == [made]
        assert made["values"] == values
        problem_of(await user.call("POST", "/api/presets", {"name": "production", "values": {}}), 409)

    async def test_presets_are_private(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        made = await user.post("/api/presets", {"name": "mine", "values": {}})
        assert (await other.get("/api/presets"))["items"] == []
        problem_of(await other.call("DELETE", f"/api/presets/{made['id']}"), 404)
        await other.post("/api/presets", {"name": "mine", "values": {}})
        data_of(await user.call("DELETE", f"/api/presets/{made['id']}"))
        assert (await user.get("/api/presets"))["items"] == []

    async def test_invalid_preset_is_refused(self, api: Api) -> None:
        user = await api.user()
        large = '{"big": "%s"}' % ("x" * 70_000)
        for values in (
            r'{"text": "\u0000"}',
            r'{"text": "\ud800"}',
            large,
            '{"n": 1' + "0" * 30 + "}",
            '{"n": NaN}',
            "[]",
        ):
            body = f'{{"name": "p", "values": {values}}}'
            response = await user.call(
                "POST", "/api/presets", content=body, headers={"Content-Type": "application/json"}
            )
            assert "values" in problem_of(response, 422)["errors"], values[:50]

    async def test_effects_are_paginated(self, api: Api) -> None:
        user = await api.user()
        for name in "abc":
            await user.post("/api/presets", {"name": name, "values": {}})
        first = await user.get("/api/presets?limit=2")
        second = await user.get(f"/api/presets?limit=2&cursor={first['next_cursor']}")
        assert [each["name"] for each in (*first["items"], *second["items"])] == ["c", "b", "a"]


async def test_effects_price_is_held_when_it_is_used(api: Api) -> None:
    user = await api.user(tokens=3)
    effect = await rich_effect(api)
    job = await submit(user, effect, input_file_id=await upload(user))
    assert job["reserved_tokens"] == 3
