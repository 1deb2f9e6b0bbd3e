"""Workers upload their node definitions, with which the server reads workflows."""

import asyncio
import gzip
import hashlib
import json
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.graphs.node_definitions import PackedDefinitions, pack
from comfyrelay.errors import Conflict, StorageUnavailable
from comfyrelay.services.catalogue import pending_workflows
from comfyrelay.services.operations.retention import GRACE_SECONDS
from comfyrelay.store.central import library
from tests.support.api import Api, Caller, data_of, problem_of
from tests.support.editor_files import DEFINITIONS, empty, node, save, subgraph, workflow
from tests.support.world import PATIENCE_SECONDS, execute

SAVED = workflow([empty(), save(9, 1)], [(1, 1, 0, 9, 0)])

BYPASSED = workflow([empty() | {"mode": 4}, save(9, 1)], [(1, 1, 0, 9, 0)])
DEEP = json.loads("[" * 500 + "]" * 500)


def _width(*spec: Any) -> dict[str, Any]:
    return {"input": {"required": {"width": list(spec)}}}


BROKEN: dict[str, dict[str, Any]] = {
    "order is a number": {"input_order": {"required": 5}},
    "order of lists": {"input_order": {"required": [["width"]]}},
    "outputs are a number": {"output": 5},
    "output without a name": {"output": [None, {}]},
    "inputs are a number": {"input": 5},
    "type is an object": _width({"x": 1}),
    "choices are a number": _width("COMFY_DYNAMICCOMBO_V3", {"options": 5}),
    "inputs of a choice are a number": _width("COMFY_DYNAMICCOMBO_V3", {"options": [{"key": [], "inputs": 5}]}),
    "deep default": _width("INT", {"default": DEEP}),
    "deep choice": _width([DEEP, 5]),
    "unstorable numbers": _width("INT", {"default": 10**400, "max": float("nan")}),
    "unstorable names": {"display_name": "\0", **_width("STRING", {"default": "\ud800"})},
    "choices are no texts": _width([{"a": 1}, 5]),
}


async def bring(worker: Caller, definitions: dict[str, Any]) -> PackedDefinitions:
    packed = pack(definitions)
    assert (await worker.post("/api/worker/definitions", {"sha256": packed.sha256}))["is_known"] is False
    data_of(await put(worker, packed.sha256, packed.data))
    return packed


async def put(worker: Caller, sha256: str, data: bytes) -> Any:
    headers = {"Content-Type": "application/octet-stream"}
    return await worker.call("PUT", f"/api/worker/definitions/{sha256}", content=data, headers=headers)


async def stored_paths(api: Api) -> list[str]:
    return sorted([stored.path async for stored in api.engine.objects.list("definitions")])


def path_of(packed: PackedDefinitions) -> str:
    return f"definitions/{packed.sha256}.json.gz"


@pytest.fixture
async def worker(api: Api) -> Caller:
    await api.effect()
    return await api.worker()


async def test_equal_node_definitions_are_uploaded_once(api: Api, worker: Caller) -> None:
    packed = await bring(worker, DEFINITIONS)
    for caller in (worker, await api.worker("gpu-2")):
        answer = await caller.post("/api/worker/definitions", {"sha256": packed.sha256})
        assert answer == {"is_known": True}
    assert await stored_paths(api) == [path_of(packed)]


async def test_editor_file_becomes_a_workflow_with_typed_inputs(api: Api, worker: Caller) -> None:
    user = await api.user()
    refused = problem_of(await user.call("POST", "/api/workflows", {"graph": SAVED}), 409)
    assert "No worker has reported its nodes" in refused["detail"]
    assert "Export (API)" in refused["detail"]
    await bring(worker, DEFINITIONS)
    answer = await user.call("POST", "/api/workflows", {"graph": SAVED, "name": "Mine"})
    assert answer.status_code == 201
    created = data_of(answer)
    assert created["output_node_id"] == "9"
    assert created["output_mime_type"] == "image/png"
    assert created["graph"]["1"]["class_type"] == "EmptyImage"
    width = next(property_ for property_ in created["properties"] if property_["key"].endswith("width"))
    assert (width["type"], width["default_value"]) == ("number", created["graph"]["1"]["inputs"]["width"])
    assert created["positions"][width["key"]] == ["1.width"]
    assert "No machine runs it yet" in created["remarks"][0]


async def test_authors_app_view_defines_inputs_and_outputs(api: Api, worker: Caller) -> None:
    noise = {"width": ["INT", {}], "text": ["STRING", {"multiline": True}], "seed": ["INT", {}]}
    await bring(worker, DEFINITIONS | {"Noise": {"input": {"required": noise}, "output": ["IMAGE"]}})
    nodes = [node(1, "Noise", values=[64, "a fox", 7, "fixed"]), save(9, 1), node(8, "SaveImage", [("images", "*", 2)])]
    extra = {"linearData": {"inputs": [[1, "text"], [1, "width"], [77, "gone"]], "outputs": [9]}}
    user = await api.user()
    added = await user.post(
        "/api/workflows", {"graph": workflow(nodes, [(1, 1, 0, 9, 0), (2, 1, 0, 8, 0)], extra=extra)}
    )
    assert [(fields["label"], fields["default_value"]) for fields in added["properties"]] == [
        ("text", "a fox"),
        ("width", 64),
    ]
    assert (added["output_node_id"], added["draws_seed"]) == ("9", True)
    assert [listed["draws_seed"] for listed in (await user.get("/api/workflows"))["items"]] == [True]
    await api.engine.workers.fleets.create(slug="home-mine", workflow_slugs=[added["slug"]])
    for key in "ab":
        body = {"workflow_slug": added["slug"], "idempotency_key": key, "wait_for_missing": True}
        await user.post("/api/ai-jobs", body)
    names = ["gpu-2", "gpu-3"]
    leased = [(await _lease(await api.worker(name, fleet="home-mine"), name))["workflow"] for name in names]
    assert all(graph.keys() == {"1", "9"} for graph in leased), "an output that is not the author's ran"
    seeds = {graph["1"]["inputs"]["seed"] for graph in leased}
    assert len(seeds) == 2
    assert all(isinstance(seed, int) for seed in seeds)


async def test_properties_are_guessed_without_node_definitions(api: Api) -> None:
    user = await api.user()
    graph = {"1": {"class_type": "EmptyImage", "inputs": {"width": 8}}, "2": _saver("1")}
    answer = await user.call("POST", "/api/workflows", {"graph": graph})
    assert "guessed" in answer.json()["message"]
    assert [property_["key"] for property_ in data_of(answer)["properties"]] == ["empty_image_width"]


async def test_choices_are_merged_and_the_newest_definition_wins(api: Api, worker: Caller) -> None:
    def with_models(*names: str, **more: Any) -> dict[str, Any]:
        return {**DEFINITIONS, "Load": {"input": {"required": {"ckpt_name": [list(names)]}}, "output": [], **more}}

    await bring(worker, with_models("a.safetensors"))
    await api.clock.set(api.clock.now + timedelta(seconds=1))
    await bring(await api.worker("gpu-2"), with_models("b.safetensors", output_node=True))
    graph = {"1": {"class_type": "Load", "inputs": {"ckpt_name": "a.safetensors"}}}
    created = await (await api.user()).post("/api/workflows", {"graph": graph})
    [models] = created["properties"]
    assert models["choices"] == ["b.safetensors", "a.safetensors"]


async def test_definitions_outlive_their_workers(api: Api, worker: Caller) -> None:
    packed = await bring(worker, DEFINITIONS)
    await worker.post("/api/worker/deregister", {})
    await api.engine.operations.retention.run_once(grace_seconds=0)
    assert await stored_paths(api) == [path_of(packed)]
    assert (await (await api.user()).call("POST", "/api/workflows", {"graph": SAVED})).status_code == 201


async def test_unused_node_definitions_are_removed_and_uploaded_again(api: Api, worker: Caller) -> None:
    old = await bring(worker, {})
    new = await bring(worker, DEFINITIONS)
    assert (await api.engine.operations.retention.run_once()).definitions == 0, (
        "definitions were removed within the grace period"
    )
    assert (await api.engine.operations.retention.run_once(grace_seconds=0)).definitions == 1
    assert await stored_paths(api) == [path_of(new)]
    await bring(worker, {})
    assert await stored_paths(api) == sorted([path_of(new), path_of(old)])


async def test_lost_node_definitions_are_requested_again(api: Api, worker: Caller) -> None:
    packed = await bring(worker, DEFINITIONS)
    await api.engine.objects.remove(path_of(packed))
    user = await api.user()
    assert (await user.call("POST", "/api/workflows", {"graph": SAVED})).status_code == 409
    await bring(worker, DEFINITIONS)
    assert (await user.call("POST", "/api/workflows", {"graph": SAVED})).status_code == 201


class TestInvalidUploads:
    async def test_invalid_hash_is_refused(self, worker: Caller) -> None:
        for sha256 in ("", "x" * 64, "../../etc/passwd", "A" * 64, "0" * 63):
            problem_of(await worker.call("POST", "/api/worker/definitions", {"sha256": sha256}), 422)
            if sha256:
                assert (await put(worker, sha256, b"")).status_code in (404, 422)

    async def test_upload_with_wrong_hash_is_refused(self, api: Api, worker: Caller) -> None:
        other = pack({"A": {}})
        problem = problem_of(await put(worker, other.sha256, pack(DEFINITIONS).data), 422)
        assert "hash" in problem["detail"]
        for text in (b"not JSON", b"[]", b'{"A": []}'):
            problem_of(await put(worker, hashlib.sha256(text).hexdigest(), gzip.compress(text)), 422)
        problem_of(await put(worker, other.sha256, json.dumps({"A": {}}).encode()), 422)
        assert await stored_paths(api) == []

    async def test_oversized_upload_is_not_read(self, api: Api, worker: Caller) -> None:
        most = api.context.settings.max_large_body_bytes
        assert (await put(worker, "0" * 64, b"\0" * (most + 1))).status_code == 413

    async def test_only_workers_upload_definitions(self, api: Api, worker: Caller) -> None:
        packed = pack(DEFINITIONS)
        for caller in (api.anonymous, await api.user(), Caller(worker.http, {"Authorization": "Bearer wrong"})):
            problem_of(await caller.call("POST", "/api/worker/definitions", {"sha256": packed.sha256}), 401)
            problem_of(await put(caller, packed.sha256, packed.data), 401)
        await api.engine.workers.workers.set_approved("gpu-1", is_approved=False)
        api.context.forget_worker("gpu-1")
        problem_of(await put(worker, packed.sha256, packed.data), 403)

    async def test_revoked_workers_definitions_are_ignored(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        await api.engine.workers.workers.set_approved("gpu-1", is_approved=False)
        user = await api.user()
        assert (await user.call("POST", "/api/workflows", {"graph": SAVED})).status_code == 409
        await bring(await api.worker("gpu-2"), {})
        assert (await user.call("POST", "/api/workflows", {"graph": SAVED})).status_code == 409

    async def test_definitions_shared_with_another_worker_are_kept(self, api: Api, worker: Caller) -> None:
        packed = await bring(worker, DEFINITIONS)
        other = await api.worker("gpu-2")
        await other.post("/api/worker/definitions", {"sha256": packed.sha256})
        await api.engine.workers.workers.set_approved("gpu-1", is_approved=False)
        await other.post("/api/worker/deregister", {})
        assert (await (await api.user()).call("POST", "/api/workflows", {"graph": SAVED})).status_code == 201

    async def test_malformed_definitions_do_not_fail_the_server(self, api: Api, worker: Caller) -> None:
        chosen = {"1": {"class_type": "EmptyImage", "inputs": {"width": 5}}, "9": _saver("1")}
        for number, (problem, broken) in enumerate(BROKEN.items()):
            await bring(worker, {name: {**node, **broken} for name, node in DEFINITIONS.items()})
            user = await api.user(f"user-{number}@example.com")
            for graph in (SAVED, BYPASSED, chosen):
                answer = await user.call("POST", "/api/workflows", {"graph": graph})
                assert answer.status_code in (201, 200, 409, 422), (problem, graph)


class TestForAdministrators:
    async def test_administrator_registers_an_editor_file(self, api: Api, worker: Caller) -> None:
        admin = await api.user(is_admin=True)
        body = {"slug": "mine", "graph": SAVED}
        problem_of(await admin.call("POST", "/api/admin/workflows", body), 409)
        await bring(worker, DEFINITIONS)
        created = await admin.post("/api/admin/workflows", body)
        assert (created["output_node_id"], created["output_extension"], created["output_mime_type"]) == (
            "9",
            "png",
            "image/png",
        )
        assert "width" in [property_["key"] for property_ in created["properties"]]
        changed = data_of(await admin.call("PATCH", "/api/admin/workflows/mine", {"graph": SAVED, "properties": []}))
        assert changed["graph"]["1"]["inputs"] == {"width": 64, "height": 48, "batch_size": 1, "color": 255}

    async def test_explicit_values_take_precedence(self, api: Api) -> None:
        admin = await api.user(is_admin=True)
        graph = {"1": {"class_type": "EmptyImage", "inputs": {"width": 8}}, "2": _saver("1")}
        body = {"slug": "mine", "graph": graph, "properties": [], "output_extension": "webp"}
        created = await admin.post("/api/admin/workflows", body)
        assert (created["properties"], created["output_extension"], created["graph"]) == ([], "webp", graph)


class TestRepeatedUpload:
    async def test_equal_graph_returns_the_existing_workflow(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        first = await user.post("/api/workflows", {"graph": SAVED, "name": "Mine"})
        again = await user.call("POST", "/api/workflows", {"graph": SAVED, "name": "Other"})
        assert again.status_code == 200
        assert again.json()["message"].startswith("You have this workflow already, as 'Mine'.")
        assert data_of(again)["slug"] == first["slug"]
        assert len((await user.get("/api/workflows"))["items"]) == 1
        other = await (await api.user("eve@example.com")).post("/api/workflows", {"graph": SAVED})
        assert other["slug"] != first["slug"]

    async def test_graph_with_other_values_is_a_new_workflow(self, api: Api) -> None:
        user = await api.user()
        graphs = [{"1": {"class_type": "A", "inputs": {"on": value}}, "2": _saver("1")} for value in (1, True, 2)]
        assert len({(await user.post("/api/workflows", {"graph": graph}))["slug"] for graph in graphs}) == 3

    async def test_existing_workflow_gets_current_choices(self, api: Api, worker: Caller) -> None:
        user = await api.user()
        body = {"graph": {"1": {"class_type": "A", "inputs": {"mode": "x"}}, "2": _saver("1")}}
        first = await user.post("/api/workflows", body)
        assert first["properties"][0]["choices"] == []
        definition = {"input": {"required": {"mode": [["x", "y"]]}}}
        await bring(worker, {"A": definition, "SaveImage": DEFINITIONS["SaveImage"]})
        assert (await user.post("/api/workflows", body))["slug"] == first["slug"]
        [now] = (await user.get("/api/workflows"))["items"]
        assert now["properties"][0]["choices"] == ["x", "y"]


class TestChanging:
    async def test_workflow_can_be_renamed(self, api: Api) -> None:
        user, other = await api.user(), await api.user("eve@example.com")
        slug = (await user.post("/api/workflows", {"graph": _graph(8)}))["slug"]
        path = f"/api/workflows/{slug}"
        problem_of(await other.call("PATCH", path, {"name": "Mine"}), 404)
        answer = await user.call("PATCH", path, {"name": "Mine"})
        assert (data_of(answer)["name"], data_of(answer)["slug"], answer.json()["message"]) == (
            "Mine",
            slug,
            "Renamed.",
        )
        nothing: list[dict[str, Any]] = [
            {},
            {"properties": []},
            {"output_extension": "png"},
            {"name": ""},
            {"nam": "x"},
        ]
        for body in nothing:
            problem_of(await user.call("PATCH", path, body), 422)

    async def test_new_version_applies_to_new_jobs_only(self, api: Api) -> None:
        user = await api.user()
        slug = (await user.post("/api/workflows", {"graph": _graph(8)}))["slug"]
        await api.engine.workers.fleets.create(slug="all", workflow_slugs=[slug])
        worker = await api.worker(fleet="all")
        await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "before"})
        changed = await user.call("PATCH", f"/api/workflows/{slug}", {"graph": _graph(9)})
        assert changed.json()["message"].startswith("Replaced. Inputs with a new default: empty_image_width.")
        await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "after"})
        polls = [{"worker_id": "gpu-1", "prefetch": 1, "request_id": request_id} for request_id in ("a", "b")]
        jobs = [(await worker.post("/api/worker/poll", poll))["job"] for poll in polls]
        assert [job["input_payload"]["workflow"]["1"]["inputs"]["width"] for job in jobs] == [8, 9]

    async def test_invalid_version_changes_nothing(self, api: Api) -> None:
        user = await api.user()
        slug = (await user.post("/api/workflows", {"graph": _graph(8)}))["slug"]
        bad = {"1": {"class_type": "PyExec", "inputs": {"code": "x"}}, "2": _saver("1")}
        for graph, status in ((bad, 422), (SAVED, 409), ({"1": 1}, 422)):
            problem_of(await user.call("PATCH", f"/api/workflows/{slug}", {"graph": graph}), status)
        [width] = (await user.get("/api/workflows"))["items"][0]["properties"]
        assert width["default_value"] == 8


async def test_each_job_randomizes_the_choices_of_a_prompt_from_the_editor(api: Api, worker: Caller) -> None:
    encode = {"input": {"required": {"prompt": ["STRING", {"multiline": True, "dynamicPrompts": True}]}}, "output": []}
    await bring(worker, {**DEFINITIONS, "Say": {**encode, "output_node": True}})
    file = workflow([node(1, "Say", values=["a {red|blue} fox"])])
    user = await api.user()
    own = await user.post("/api/workflows", {"graph": file, "name": "Foxes"})
    [prompt] = own["properties"]
    assert (prompt["is_dynamic_prompt"], prompt["default_value"]) == (True, "a {red|blue} fox")

    async def random_prompt(key: str, **payload: str) -> str:
        body = {"workflow_slug": own["slug"], "idempotency_key": key, "input_payload": payload}
        job = await user.post("/api/ai-jobs", {**body, "wait_for_missing": True})
        # A user may have only a few active jobs.
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        return str(job["label"]).removeprefix("Foxes · ")

    assert {await random_prompt(f"default {n}") for n in range(20)} == {"a red fox", "a blue fox"}
    assert {await random_prompt(f"own {n}", **{prompt["key"]: "{one|two}"}) for n in range(20)} == {"one", "two"}
    deep = {"workflow_slug": own["slug"], "idempotency_key": "deep", "input_payload": {prompt["key"]: "{a|" * 11}}
    problem = problem_of(await user.call("POST", "/api/ai-jobs", deep), 422)
    assert list(problem["errors"]) == [prompt["key"]]


class TestWaitingForNodes:
    """The fields of an editor workflow are unknown while no worker has its nodes."""

    RARE = workflow([empty(), node(2, "Rare", [("images", "IMAGE", 1)], values=[5])], [(1, 1, 0, 2, 0)])
    COMPLETE: ClassVar[dict[str, Any]] = {
        **DEFINITIONS,
        "Rare": {
            "input": {"required": {"images": ["IMAGE"], "strength": ["INT", {"default": 1}]}},
            "output": [],
            "output_node": True,
        },
    }
    ANYWAY: ClassVar[dict[str, Any]] = {"graph": RARE, "name": "Mine", "wait_for_missing": True}

    async def test_unknown_nodes_are_named_and_waiting_is_offered(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        problem = problem_of(await (await api.user()).call("POST", "/api/workflows", {"graph": self.RARE}), 409)
        assert problem["type"] == "urn:comfyrelay:missing_on_workers"
        assert problem["missing"] == [{"kind": "node", "name": "Rare", "workers": 0, "on": []}]
        assert "Rare (node 2)" in problem["detail"]
        assert "add it anyway" in problem["detail"]

    async def test_package_of_a_missing_node_stays_known(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        rare = node(2, "Rare", [("images", "IMAGE", 1)], values=[5], properties={"cnr_id": "rare-pack"})
        file = workflow([empty(), rare], [(1, 1, 0, 2, 0)])
        missing = [{"kind": "node", "name": "Rare", "workers": 0, "on": [], "source": "rare-pack"}]
        problem = problem_of(await user.call("POST", "/api/workflows", {"graph": file}), 409)
        assert problem["missing"] == missing
        await user.post("/api/workflows", {"graph": file, "wait_for_missing": True})
        # The file is read again after every report of a worker.
        await bring(worker, {**DEFINITIONS, "New": DEFINITIONS["ImageInvert"]})
        await api.engine.catalogue.pending_workflows.run_once()
        [listed] = (await user.get("/api/workflows"))["items"]
        assert listed["missing"]["items"] == missing

    async def test_pending_workflow_is_listed_and_refuses_jobs(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        answer = await user.call("POST", "/api/workflows", self.ANYWAY)
        created = data_of(answer)
        assert answer.status_code == 201
        assert (created["properties"], created["graph"]) == ([], {})
        [listed] = (await user.get("/api/workflows"))["items"]
        assert listed["waiting"].startswith("Waiting for nodes that no worker has: Rare.")
        assert [requirement["name"] for requirement in listed["missing"]["items"]] == ["Rare"]
        bodies: dict[str, dict[str, Any]] = {"ai-jobs": {}, "batches": {"items": [{}]}}
        for path, body in bodies.items():
            request = {"workflow_slug": created["slug"], "idempotency_key": "k", "wait_for_missing": True, **body}
            problem = problem_of(await user.call("POST", f"/api/{path}", request), 409)
            assert problem["detail"].startswith("Waiting for nodes that no worker has: Rare")
            assert "Once a worker has them" in problem["detail"]

    async def test_pending_workflow_is_read_when_its_nodes_arrive(self, api: Api, worker: Caller) -> None:
        await api.stop_loops()
        user = await api.user()
        slug = (await user.post("/api/workflows", self.ANYWAY))["slug"]
        await bring(worker, DEFINITIONS)
        assert await api.engine.catalogue.pending_workflows.run_once() == 0
        [listed] = (await user.get("/api/workflows"))["items"]
        # only the missing node is named
        assert listed["waiting"].startswith("Waiting for nodes that no worker has: Rare")
        await bring(worker, self.COMPLETE)
        assert await api.engine.catalogue.pending_workflows.run_once() == 1
        [listed] = (await user.get("/api/workflows"))["items"]
        assert (listed["slug"], listed["name"], listed["waiting"], listed["missing"]) == (slug, "Mine", None, None)
        assert listed["output_node_id"] == "2"
        strength = next(property_ for property_ in listed["properties"] if property_["key"].endswith("strength"))
        assert (strength["type"], strength["default_value"]) == ("number", 5)
        job = {"workflow_slug": slug, "idempotency_key": "k", "input_payload": {strength["key"]: 6}}
        assert (await user.call("POST", "/api/ai-jobs", job)).status_code == 201
        again = await user.call("POST", "/api/workflows", {"graph": self.RARE})
        assert (again.status_code, data_of(again)["slug"]) == (200, slug)

    async def test_reader_wakes_when_node_definitions_arrive(
        self, api: Api, worker: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await api.stop_loops()
        monkeypatch.setattr(pending_workflows, "POLL_SECONDS", 10 * PATIENCE_SECONDS)
        user = await api.user()
        await user.post("/api/workflows", self.ANYWAY)
        for caller in (worker, await api.worker("gpu-2")):
            looking = asyncio.create_task(api.engine.catalogue.pending_workflows.run_and_wait())
            packed = pack(self.COMPLETE)
            if not (await caller.post("/api/worker/definitions", {"sha256": packed.sha256}))["is_known"]:
                await put(caller, packed.sha256, packed.data)
            await asyncio.wait_for(looking, PATIENCE_SECONDS)

    async def test_repeated_upload_returns_the_pending_workflow(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        first = await user.post("/api/workflows", self.ANYWAY)
        again = await user.call("POST", "/api/workflows", {**self.ANYWAY, "name": "Other"})
        assert (again.status_code, data_of(again)["slug"]) == (200, first["slug"])

    async def test_options_of_a_pending_workflow_are_kept(self, api: Api, worker: Caller) -> None:
        await api.stop_loops()
        saved = workflow([empty(), node(2, "Rare", [("images", "IMAGE", 1)], values=["{{S}}"])], [(1, 1, 0, 2, 0)])
        mine = {"key": "power", "type": "number", "placeholder": "{{S}}", "default_value": 3}
        body = {"graph": saved, "properties": [mine], "output_extension": "webp", "wait_for_missing": True}
        user = await api.user()
        await user.post("/api/workflows", body)
        await bring(worker, self.COMPLETE)
        assert await api.engine.catalogue.pending_workflows.run_once() == 1
        [listed] = (await user.get("/api/workflows"))["items"]
        assert [property_["key"] for property_ in listed["properties"]] == ["power"]
        assert listed["output_extension"] == "webp"

    async def test_pending_workflow_can_be_renamed_replaced_and_removed(self, api: Api, worker: Caller) -> None:
        await api.stop_loops()
        await bring(worker, DEFINITIONS)
        user, admin = await api.user(), await api.user("root@example.com", is_admin=True)
        slug = (await user.post("/api/workflows", self.ANYWAY))["slug"]
        path = f"/api/workflows/{slug}"
        renamed = data_of(await user.call("PATCH", path, {"name": "Yours"}))
        assert (renamed["name"], renamed["waiting"] is None) == ("Yours", False)
        seen = await admin.get(f"/api/admin/workflows/{slug}")
        assert (seen["graph"], "Waiting for nodes" in seen["warnings"][0]) == (self.RARE, True)
        assert (await admin.post(f"/api/admin/workflows/{slug}/validate", {}))["node_types"] == ["Rare"]
        problem_of(await user.call("PATCH", path, {"graph": self.RARE}), 409)
        assert data_of(await user.call("PATCH", path, {"graph": SAVED}))["waiting"] is None
        await bring(worker, self.COMPLETE)
        assert await api.engine.catalogue.pending_workflows.run_once() == 0
        second = (await user.post("/api/workflows", {**self.ANYWAY, "graph": self.OTHER}))["slug"]
        data_of(await user.call("DELETE", f"/api/workflows/{second}"))
        assert [workflow["slug"] for workflow in (await user.get("/api/workflows"))["items"]] == [slug]

    OTHER = workflow([empty(), node(2, "Rarer")])

    async def test_unreadable_pending_workflow_reports_why(self, api: Api, worker: Caller) -> None:
        await api.stop_loops()
        user = await api.user()
        slug = (await user.post("/api/workflows", self.ANYWAY))["slug"]
        painted = {"input": {"required": {"images": ["IMAGE"], "canvas": ["WEBCAM", {}]}}, "output": []}
        await bring(worker, {**DEFINITIONS, "Rare": painted})
        assert await api.engine.catalogue.pending_workflows.run_once() == 0
        [listed] = (await user.get("/api/workflows"))["items"]
        assert listed["waiting"].startswith("The workflow cannot be read: ")
        assert "only the browser can create" in listed["waiting"]
        problem_of(await user.call("POST", "/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "k"}), 409)

    async def test_denied_node_is_refused_without_waiting(self, api: Api) -> None:
        saved = workflow([node(1, "PyExec", values=["print()"])])
        body = {"graph": saved, "wait_for_missing": True}
        problem = problem_of(await (await api.user()).call("POST", "/api/workflows", body), 422)
        assert problem["type"] == "urn:comfyrelay:graph_not_allowed"

    async def test_concurrent_change_takes_precedence_over_the_import(self, api: Api, worker: Caller) -> None:
        await api.stop_loops()
        user = await api.user()
        slug = (await user.post("/api/workflows", self.ANYWAY))["slug"]
        async with api.engine.databases.central.read() as tx:
            [before] = await library.waiting(tx, limit=10)
        await user.call("PATCH", f"/api/workflows/{slug}", {"graph": _graph(8)})
        await bring(worker, self.COMPLETE)
        with pytest.raises(Conflict):
            await api.engine.catalogue.own_workflows.import_pending(before)
        [width] = (await user.get("/api/workflows"))["items"][0]["properties"]
        assert width["default_value"] == 8


class TestTenantPolicy:
    async def test_policy_applies_to_converted_editor_files(self, api: Api, worker: Caller) -> None:
        await bring(worker, {**DEFINITIONS, "PyExec": {"input": {"required": {"code": ["STRING"]}}, "output": []}})
        saved = workflow([{**empty(), "type": "PyExec", "widgets_values": ["print()"]}, save(9, 1)], [(1, 1, 0, 9, 0)])
        problem = problem_of(await (await api.user()).call("POST", "/api/workflows", {"graph": saved}), 422)
        assert problem["type"] == "urn:comfyrelay:graph_not_allowed"
        assert "PyExec (1)" in problem["detail"]

    async def test_file_path_input_is_not_a_property_and_keeps_its_value(self, api: Api) -> None:
        user = await api.user()
        graph = {"1": {"class_type": "Draw", "inputs": {"font_file": "mono.ttf", "size": 3}}, "2": _saver("1")}
        created = await user.post("/api/workflows", {"graph": graph})
        assert [property_["key"] for property_ in created["properties"]] == ["draw_size"]
        job = await user.call("POST", "/api/ai-jobs", {"workflow_slug": created["slug"], "idempotency_key": "k"})
        assert job.status_code == 201, job.text


def _graph(width: int) -> dict[str, Any]:
    return {"1": {"class_type": "EmptyImage", "inputs": {"width": width}}, "2": _saver("1")}


def _saver(source: str) -> dict[str, Any]:
    return {"class_type": "SaveImage", "inputs": {"images": [source, 0], "filename_prefix": "x"}}


LONG = "1" * 8000 + "a"


@pytest.mark.parametrize(
    ("saved", "status", "words"),
    [
        (
            workflow(
                [node(1, "PrimitiveNode", values=[5]), node(2, "SaveImage", [(LONG, "INT", 1)])], [(1, 1, 0, 2, 0)]
            ),
            422,
            "a name of more than 1000 characters",
        ),
        (
            workflow([node(at, "text") for at in range(1000)])
            | {
                "definitions": {
                    "subgraphs": [subgraph("text", [node(1, "SaveImage", values=["x" * 100_000])], [], [], [])]
                }
            },
            413,
            "at most 16777216 characters in total",
        ),
    ],
    ids=["long name", "repeated text"],
)
async def test_converted_editor_file_is_validated_as_a_graph(
    api: Api, worker: Caller, saved: dict[str, Any], status: int, words: str
) -> None:
    await bring(worker, DEFINITIONS)
    problem = problem_of(await (await api.user()).call("POST", "/api/workflows", {"graph": saved}), status)
    assert words in problem["detail"]


async def test_lease_carries_the_editor_file_of_the_users_own_workflow(api: Api, worker: Caller) -> None:
    await bring(worker, DEFINITIONS)
    owner, admin = await api.user(), await api.user("admin@example.com", is_admin=True)
    added = await owner.post("/api/workflows", {"graph": SAVED, "name": "Mine"})
    slug = added["slug"]
    # Users do not get the notes in an operator's file.
    await admin.post("/api/admin/workflows", {"slug": "shared", "graph": SAVED})
    effect = await api.engine.catalogue.effects.create(slug="shared", workflow_slug="shared", credits_cost=0)
    await api.engine.workers.fleets.create(slug="home-mine", workflow_slugs=[slug, "shared"])
    width = next(fields["key"] for fields in added["properties"] if fields["key"].endswith("width"))
    body = {"workflow_slug": slug, "idempotency_key": "a", "input_payload": {width: 32}, "wait_for_missing": True}
    await owner.post("/api/ai-jobs", body)
    leased = await _lease(await api.worker("gpu-2", fleet="home-mine"), "gpu-2")
    embedded = leased["extra_data"]["extra_pnginfo"]["workflow"]
    assert embedded["nodes"][0]["widgets_values"] == [32, 48, 1, 255]
    assert leased["workflow"]["1"]["inputs"]["width"] == 32
    await owner.post("/api/ai-jobs", {"effect_id": effect.id, "idempotency_key": "b", "wait_for_missing": True})
    leased = await _lease(await api.worker("gpu-3", fleet="home-mine"), "gpu-3")
    assert leased["extra_data"] == {}


async def test_editor_file_that_exceeds_the_limit_with_its_graph_is_left_out(api: Api, worker: Caller) -> None:
    await bring(worker, DEFINITIONS)
    user = await api.user()
    assert user.user is not None
    stored: dict[int, bool] = {}
    for limit in (1000, 100_000):
        api.engine.catalogue.private_graphs.max_bytes = limit
        graph = SAVED | {"extra": {"note": "x" * 1000}}
        await user.post("/api/workflows", {"graph": graph, "name": "mine"})
        async with api.engine.databases.central.read() as tx:
            [own] = (await library.own_workflows(tx, user.user.tenant_id, before_id=None, limit=9))[0]
        stored[limit] = await api.engine.catalogue.graphs.get_editor(own.graph_path) is not None
    assert stored == {1000: False, 100_000: True}


class TestLayout:
    """The layout of an editor file is not part of a workflow's identity."""

    @staticmethod
    def layout_at(position: int, note: str = "") -> dict[str, Any]:
        graph = workflow([empty() | {"pos": [position, 0]}, save(9, 1)], [(1, 1, 0, 9, 0)])
        return graph | {"extra": {"note": note}}

    async def test_equal_graph_is_one_workflow_in_every_format_and_layout(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        formats = [self.layout_at(0), self.layout_at(500), convert_workflow(SAVED, DEFINITIONS), self.layout_at(900)]
        answers = [await user.call("POST", "/api/workflows", {"graph": graph, "name": "Mine"}) for graph in formats]
        assert [answer.status_code for answer in answers] == [201, 200, 200, 200]
        assert len({data_of(answer)["slug"] for answer in answers}) == 1
        # Jobs of equal graphs are equal for `reuse`, which compares the paths of graphs.
        assert len([path for path in await _graphs(api, user) if path.endswith(".json")]) == 1

    async def test_last_layout_is_kept(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        for graph in (convert_workflow(SAVED, DEFINITIONS), self.layout_at(0), self.layout_at(500)):
            await user.post("/api/workflows", {"graph": graph, "name": "Mine"})
        converted = convert_workflow(SAVED, DEFINITIONS)
        slug = (await user.post("/api/workflows", {"graph": converted, "name": "Mine"}))["slug"]
        await api.engine.workers.fleets.create(slug="home-mine", workflow_slugs=[slug])
        await user.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "a", "wait_for_missing": True})
        leased = await _lease(await api.worker("gpu-2", fleet="home-mine"), "gpu-2")
        assert leased["extra_data"]["extra_pnginfo"]["workflow"]["nodes"][0]["pos"] == [500, 0]

    async def test_layout_of_another_process_is_read_when_the_cached_one_expires(
        self, api: Api, worker: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("comfyrelay.services.catalogue.graphs.EDITOR_CACHE_SECONDS", 0)
        await bring(worker, DEFINITIONS)
        user = await api.user()
        await user.post("/api/workflows", {"graph": SAVED, "name": "Mine"})
        graph_path, stored = await _graphs(api, user)
        catalogue_graphs = api.engine.catalogue.graphs
        assert await catalogue_graphs.get_editor(graph_path) == await api.engine.objects.get(stored)
        await api.engine.objects.put(stored, b"{}")
        assert await catalogue_graphs.get_editor(graph_path) == b"{}"

        async def fail(_path: str) -> bytes:
            raise StorageUnavailable("down")

        monkeypatch.setattr(api.engine.objects, "get", fail)
        assert await catalogue_graphs.get_editor(graph_path) == b"{}"

    async def test_layout_that_was_not_stored_is_stored_by_the_next_attempt(
        self, api: Api, worker: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        put_object = api.engine.objects.put

        async def fail(path: str, data: bytes) -> None:
            if path.startswith("tenants/") and not path.endswith(".json"):
                raise StorageUnavailable("down")
            await put_object(path, data)

        with monkeypatch.context() as outage:
            outage.setattr(api.engine.objects, "put", fail)
            problem_of(await user.call("POST", "/api/workflows", {"graph": SAVED, "name": "Mine"}), 503)
        assert len(await _graphs(api, user)) == 1
        assert (await user.call("POST", "/api/workflows", {"graph": SAVED, "name": "Mine"})).status_code == 201
        assert len(await _graphs(api, user)) == 2

    async def test_replaced_layout_gives_its_space_back(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        taken = []
        for note in ("", "x" * 1000, ""):
            await user.post("/api/workflows", {"graph": self.layout_at(0, note), "name": "Mine"})
            [wallet] = await execute(api.engine.databases.shards["main"], "SELECT space_bytes FROM token_wallets")
            taken.append(wallet.space_bytes)
        assert taken[1] - taken[0] == 1000
        assert taken[2] == taken[0]

    async def test_layout_is_removed_with_its_graph(self, api: Api, worker: Caller) -> None:
        await bring(worker, DEFINITIONS)
        user = await api.user()
        slug = (await user.post("/api/workflows", {"graph": SAVED, "name": "Mine"}))["slug"]
        assert len(await _graphs(api, user)) == 2
        assert (await user.call("DELETE", f"/api/workflows/{slug}")).is_success
        for _ in range(2):
            await api.engine.operations.retention.run_once()
            await api.clock.set(api.clock.now + timedelta(seconds=GRACE_SECONDS + 1))
            while await api.engine.jobs.removal.run_once():
                pass
        assert await _graphs(api, user) == []


async def test_graph_with_a_node_called_editor_can_be_read(api: Api) -> None:
    user = await api.user()
    graph = {"1": {"class_type": "EmptyImage", "inputs": {}}, "editor": {**_saver("1"), "nodes": []}}
    slug = (await user.post("/api/workflows", {"graph": graph, "name": "Mine"}))["slug"]
    assert (await api.engine.catalogue.workflows.get(slug)).graph == graph | {"editor": {**_saver("1"), "nodes": []}}


async def _graphs(api: Api, user: Caller) -> list[str]:
    assert user.user is not None
    listed = api.engine.objects.list(f"tenants/{user.user.tenant_id}/graphs")
    return sorted([stored.path async for stored in listed])


async def _lease(worker: Caller, worker_id: str) -> Any:
    return (await worker.post("/api/worker/poll", {"worker_id": worker_id}))["job"]["input_payload"]
