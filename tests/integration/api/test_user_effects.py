"""Effects without operator data, and graphs that users upload."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.services.catalogue import presets
from comfyrelay.store import paging
from tests.support.api import Api, Caller, data_of, problem_of
from tests.support.api_calls import complete, fail, lease, submit, upload
from tests.support.chromium import PROMPT_GRAPH
from tests.support.world import GRAPH

IMAGE = {"key": "photo", "type": "image", "placeholder": "{{INPUT}}", "required": True, "is_primary_input": True}
PROMPT = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "default_value": "a cat"}


async def rich_effect(api: Api, **more: Any) -> int:
    """Create an effect with inputs of all kinds; return its id."""
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
    async def test_effect_shows_price_and_user_inputs_only(self, api: Api) -> None:
        id_ = await rich_effect(api)
        user = await api.user()
        effect = await user.get("/api/effects/rich")
        assert (effect["id"], effect["slug"], effect["credits_cost"]) == (id_, "rich", 3)
        assert effect["last_processing_time_seconds"] is None
        inputs = {property_["key"]: property_ for property_ in effect["properties"]}
        assert set(inputs) == {"prompt", "photo", "frame", "steps"}
        assert inputs["prompt"]["default_value"] == "a dog"
        assert inputs["photo"]["is_primary_input"]
        assert inputs["photo"]["required"]
        assert (inputs["steps"]["minimum"], inputs["steps"]["maximum"]) == (1, 50)
        assert not inputs["steps"]["required"]  # set by the effect
        listed = (await user.call("GET", "/api/effects")).text
        for secret in ("secret", "catalogue/", "{{PROMPT}}", "placeholder", "graph"):
            assert secret not in listed

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
        assert [item["slug"] for item in (*first["items"], *second["items"])] == ["a", "b"]
        assert second["next_cursor"] is None

    async def test_invalid_page_is_refused(self, api: Api) -> None:
        user = await api.user()
        for query in ("limit=0", "limit=201", "limit=x", "cursor=-1", "cursor=x"):
            problem_of(await user.call("GET", f"/api/effects?{query}"), 422)


class TestPrivateWorkflows:
    async def test_uploaded_graph_can_be_run(self, api: Api) -> None:
        user = await api.user()
        response = await user.call(
            "POST",
            "/api/workflows",
            {"name": "My Cats!", "graph": GRAPH, "properties": [PROMPT, IMAGE], "output_extension": "png"},
        )
        assert response.status_code == 201
        created = data_of(response)
        assert created["slug"].startswith("my-cats-")
        assert created["output_mime_type"] == "image/png"
        assert [property_["key"] for property_ in created["properties"]] == ["prompt", "photo"]
        body = {"workflow_slug": created["slug"], "idempotency_key": "k", "input_payload": {"prompt": "a cow"}}
        job = await user.post("/api/ai-jobs", {**body, "input_file_id": await upload(user)})
        assert (job["status"], job["reserved_tokens"], job["effect_id"]) == ("queued", 0, None)

    async def test_own_workflow_is_private(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        slug = (await user.post("/api/workflows", {"graph": GRAPH, "properties": [PROMPT, IMAGE]}))["slug"]
        assert [workflow["slug"] for workflow in (await user.get("/api/workflows"))["items"]] == [slug]
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

    async def test_graph_naming_worker_files_is_refused(self, api: Api) -> None:
        user = await api.user()
        for name in (
            "/etc/passwd",
            "C:\\secrets",
            "../other/cat.png",
            "folder/../../cat.png",
            "cat.png [output]",
            "somebody-elses.png",
            "~/cat.png",
        ):
            graph = {"1": {"class_type": "LoadImage", "inputs": {"image": name}}}
            response = await user.call("POST", "/api/workflows", {"graph": graph})
            assert problem_of(response, 422)["type"] == "urn:comfyrelay:graph_not_allowed"

    async def test_named_file_can_be_a_placeholder(self, api: Api) -> None:
        graph = {"1": {"class_type": "LoadImage", "inputs": {"image": "example.png"}}}
        body = {"graph": graph, "properties": [{**IMAGE, "placeholder": "example.png"}]}
        assert await (await api.user()).post("/api/workflows", body)

    async def test_graph_can_output_plain_text(self, api: Api) -> None:
        user = await api.user()
        outputs: list[dict[str, str]] = [{}, {"output_mime_type": "text/plain"}]
        for number, output in enumerate(outputs):
            graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": f"hello {number}"}}}
            created = await user.post("/api/workflows", {"graph": graph, "output_extension": "txt", **output})
            assert (created["output_extension"], created["output_mime_type"]) == ("txt", "text/plain")

    async def test_default_path_of_a_file_is_refused(self, api: Api) -> None:
        stolen = {**IMAGE, "default_value": "tenants/another/uploads/private.png"}
        response = await (await api.user()).call("POST", "/api/workflows", {"graph": GRAPH, "properties": [stolen]})
        assert "photo" in problem_of(response, 422)["errors"]

    async def test_invalid_graph_is_refused(self, api: Api) -> None:
        user = await api.user()
        bodies: list[dict[str, Any]] = [
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
        ]
        for body in bodies:
            problem_of(await user.call("POST", "/api/workflows", body), 422)


class TestPresets:
    async def test_preset_stores_values_by_name(self, api: Api) -> None:
        user = await api.user()
        values = {"prompt": "a cat", "steps": 20, "nested": {"seed": 2**64 - 1}}
        created = await user.post("/api/presets", {"name": "production", "values": values})
        assert (await user.get("/api/presets"))["items"] == [created]
        assert created["values"] == values
        problem_of(await user.call("POST", "/api/presets", {"name": "production", "values": {}}), 409)

    # Only PostgreSQL runs the calls concurrently.
    @pytest.mark.both_databases
    async def test_number_of_presets_is_limited(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(presets, "MAX_PRESETS", 2)
        user = await api.user()
        created = await asyncio.gather(
            *(user.call("POST", "/api/presets", {"name": f"p{number}", "values": {}}) for number in range(4))
        )
        assert sorted(answer.status_code for answer in created) == [201, 201, 409, 409]
        refused = next(answer for answer in created if answer.status_code == 409)
        assert problem_of(refused, 409)["detail"] == "You have 2 presets, which is the limit. Delete one first."

    async def test_page_of_large_presets_ends_early(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 2500)
        user = await api.user()
        for number, size in enumerate([1000, 1000, 1000, 3000, 100]):
            await user.post("/api/presets", {"name": f"p{number}", "values": {"prompt": "x" * size}})
        pages, cursor = [], ""
        while cursor is not None:
            page = await user.get(f"/api/presets?limit=3{cursor and f'&cursor={cursor}'}")
            pages.append([item["name"] for item in page["items"]])
            cursor = page["next_cursor"]
        # an item that is too large for a page gets its own page
        assert pages == [["p4"], ["p3"], ["p2", "p1"], ["p0"]]

    async def test_presets_are_private(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        created = await user.post("/api/presets", {"name": "mine", "values": {}})
        assert (await other.get("/api/presets"))["items"] == []
        problem_of(await other.call("DELETE", f"/api/presets/{created['id']}"), 404)
        await other.post("/api/presets", {"name": "mine", "values": {}})
        data_of(await user.call("DELETE", f"/api/presets/{created['id']}"))
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

    async def test_presets_are_paginated(self, api: Api) -> None:
        user = await api.user()
        for name in "abc":
            await user.post("/api/presets", {"name": name, "values": {}})
        first = await user.get("/api/presets?limit=2")
        second = await user.get(f"/api/presets?limit=2&cursor={first['next_cursor']}")
        assert [item["name"] for item in (*first["items"], *second["items"])] == ["c", "b", "a"]


async def test_effect_price_is_reserved(api: Api) -> None:
    user = await api.user(tokens=3)
    effect = await rich_effect(api)
    job = await submit(user, effect, input_file_id=await upload(user))
    assert job["reserved_tokens"] == 3


class TestRemovalUnlessNeeded:
    """`run` removes the workflow of a file only if no other command or job needs it."""

    @staticmethod
    async def add(api: Api) -> tuple[Caller, Caller, str]:
        user = await api.user()
        slug = (await user.post("/api/workflows", {"graph": PROMPT_GRAPH, "name": "mine"}))["slug"]
        await api.engine.workers.fleets.create(slug="own", workflow_slugs=[slug])
        return user, await api.worker("gpu-own", fleet="own"), slug

    @staticmethod
    async def submit(user: Caller, slug: str, key: str = "one") -> None:
        await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": key})

    @staticmethod
    async def remove(user: Caller, slug: str) -> Any:
        return await user.call("DELETE", f"/api/workflows/{slug}?unless_needed=true")

    @pytest.mark.parametrize("has_job", [False, True])
    async def test_workflow_without_other_jobs_is_removed(self, api: Api, has_job: bool) -> None:
        user, worker, slug = await self.add(api)
        if has_job:
            await self.submit(user, slug)
            await complete(api, worker, await lease(worker, "gpu-own"))
        data_of(await self.remove(user, slug))
        assert (await user.get("/api/workflows"))["items"] == []

    async def test_workflow_that_was_added_again_is_kept(self, api: Api) -> None:
        user, worker, slug = await self.add(api)
        await self.submit(user, slug)
        await complete(api, worker, await lease(worker, "gpu-own"))
        await api.clock.set(api.clock.now + timedelta(seconds=1))
        assert (await user.post("/api/workflows", {"graph": PROMPT_GRAPH, "name": "mine"}))["slug"] == slug
        assert "was added again or changed" in problem_of(await self.remove(user, slug), 409)["detail"]

    async def test_workflow_of_a_failed_job_is_kept(self, api: Api) -> None:
        user, worker, slug = await self.add(api)
        await self.submit(user, slug)
        await fail(api, worker, await lease(worker, "gpu-own"))
        assert "which can be retried" in problem_of(await self.remove(user, slug), 409)["detail"]

    async def test_workflow_with_another_job_is_kept(self, api: Api) -> None:
        user, worker, slug = await self.add(api)
        for key in ("one", "two"):
            await self.submit(user, slug, key)
            await complete(api, worker, await lease(worker, "gpu-own"))
        assert "has other jobs" in problem_of(await self.remove(user, slug), 409)["detail"]
