"""Jobs over HTTP: submitted once per key, seen by their owner alone, and the verbs."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import Api, Caller, data_of, open_api, problem_of
from tests.api.studio import complete, fail, lease, lease_of, png, run, submit, upload
from tests.harness import SqliteBackend


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user(tokens=100)


@pytest.fixture
async def effect(api: Api) -> int:
    return await api.effect()


async def ids(user: Caller, query: str = "") -> list[str]:
    return [each["id"] for each in (await user.get(f"/api/ai-jobs{query}"))["items"]]


class TestSubmitting:
    async def test_a_job_is_accepted_and_its_tokens_are_held(self, user: Caller, effect: int) -> None:
        body = {"effect_id": effect, "idempotency_key": "k", "input_payload": {"prompt": "a cow"}}
        response = await user.call("POST", "/api/ai-jobs", body)
        assert response.status_code == 201
        job = data_of(response)
        assert (job["status"], job["effect_id"], job["attempts"]) == ("queued", effect, 0)
        assert (job["reserved_tokens"], job["outputs"], job["error"]) == (7, [], None)
        assert (await user.get("/api/wallet"))["balance"] == 93

    async def test_the_same_request_gives_the_same_job(self, user: Caller, effect: int) -> None:
        body = {"effect_id": effect, "idempotency_key": "k"}
        first = await user.call("POST", "/api/ai-jobs", body)
        again = await user.call("POST", "/api/ai-jobs", body)
        assert (first.status_code, again.status_code) == (201, 200)
        assert data_of(first)["id"] == data_of(again)["id"]
        assert (await user.get("/api/wallet"))["balance"] == 93

    async def test_the_same_key_for_another_request_is_refused(self, user: Caller, effect: int) -> None:
        await user.post("/api/ai-jobs", {"effect_id": effect, "idempotency_key": "k"})
        other = {"effect_id": effect, "idempotency_key": "k", "input_payload": {"prompt": "another"}}
        response = await user.call("POST", "/api/ai-jobs", other)
        assert problem_of(response, 409)["type"] == "urn:comfyrelay:idempotency_conflict"

    async def test_too_few_tokens(self, api: Api, effect: int) -> None:
        poor = await api.user("poor@example.com", tokens=6)
        response = await poor.call("POST", "/api/ai-jobs", {"effect_id": effect, "idempotency_key": "k"})
        assert problem_of(response, 422)["required_tokens"] == 7
        assert await ids(poor) == []

    async def test_at_most_five_at_once(self, user: Caller, effect: int) -> None:
        for _ in range(5):
            await submit(user, effect)
        response = await user.call("POST", "/api/ai-jobs", {"effect_id": effect, "idempotency_key": "k"})
        assert problem_of(response, 429)["type"] == "urn:comfyrelay:too_many_active_jobs"

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "idempotency_key"),
            ({"idempotency_key": ""}, "idempotency_key"),
            ({"idempotency_key": "batch:1:2"}, "idempotency_key"),
            ({"idempotency_key": "k", "workflow_slug": "x"}, "effect_id"),
            ({"idempotency_key": "k", "input_payload": {"nothing": 1}}, "nothing"),
            ({"idempotency_key": "k", "input_payload": {"prompt": 5}}, "prompt"),
            ({"idempotency_key": "k", "input_file_id": "no-such-file"}, "input_file_id"),
            ({"idempotency_key": "k", "video_id": "no-such-video"}, "video_id"),
            ({"idempotency_key": "k", "webhook_url": "ftp://example.com"}, "webhook_url"),
            ({"idempotency_key": "k", "priority": 10**12}, "priority"),
            ({"idempotency_key": "k", "surprise": 1}, "surprise"),
        ],
    )
    async def test_what_is_wrong_is_named(self, user: Caller, effect: int, body: dict[str, Any], field: str) -> None:
        response = await user.call("POST", "/api/ai-jobs", {"effect_id": effect, **body})
        assert field in problem_of(response, 422)["errors"]

    async def test_there_is_no_such_effect(self, user: Caller) -> None:
        for id_ in (999, 2**63 - 1):
            body = {"effect_id": id_, "idempotency_key": "k"}
            problem_of(await user.call("POST", "/api/ai-jobs", body), 404)
        problem_of(await user.call("POST", "/api/ai-jobs", {"effect_id": 2**63, "idempotency_key": "k"}), 422)

    async def test_nobody_uses_another_ones_file(self, api: Api, user: Caller, effect: int) -> None:
        other = await api.user("eve@example.com", tokens=10)
        file = await upload(user)
        body = {"effect_id": effect, "idempotency_key": "k", "input_file_id": file}
        assert "input_file_id" in problem_of(await other.call("POST", "/api/ai-jobs", body), 422)["errors"]

    async def test_a_priority_is_clamped(self, user: Caller, effect: int) -> None:
        assert (await submit(user, effect, priority=1000))["priority"] == 10

    async def test_only_an_administrator_chooses_the_stage(self, api: Api, user: Caller, effect: int) -> None:
        body = {"effect_id": effect, "idempotency_key": "k", "stage": "staging"}
        problem_of(await user.call("POST", "/api/ai-jobs", body), 403)
        admin = await api.user("root@example.com", is_admin=True, tokens=10)
        assert await admin.post("/api/ai-jobs", body)


class TestLooking:
    async def test_a_waiting_job_says_why(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        waiting = (await user.get(f"/api/ai-jobs/{job['id']}"))["waiting"]
        assert waiting["reason"] == "no_worker"
        assert waiting["text"]

    async def test_a_running_one_says_how_far_it_is(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        leased = await lease(worker)
        beat = {**lease_of(leased), "progress": {"done": 0.25}, "logs": ["loading", "sampling"]}
        await worker.post("/api/worker/heartbeat", beat)
        await api.engine.outbox.delivery.idle()
        for seen in (await user.get(f"/api/ai-jobs/{job['id']}"), (await user.get("/api/ai-jobs"))["items"][0]):
            assert (seen["status"], seen["attempts"], seen["progress"]) == ("processing", 1, {"done": 0.25})
            assert seen["waiting"] is None

    async def test_a_completed_one_gives_its_output_under_a_readable_name(
        self, api: Api, user: Caller, effect: int
    ) -> None:
        job = await run(api, user, await api.worker(), effect)
        [output] = job["outputs"]
        assert output["mime_type"] == "image/png"
        assert output["size"] == len(png("blue"))
        assert output["filename"].startswith("clip-")
        assert output["filename"].endswith(".png")
        got = await api.anybody.http.get(output["url"])
        assert got.content == png("blue")
        assert got.headers["Content-Disposition"] == f'attachment; filename="{output["filename"]}"'
        assert (job["status"], job["progress"], job["waiting"]) == ("completed", None, None)

    async def test_a_failed_one_says_why_in_a_sentence(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        await fail(api, worker, await lease(worker), "No such model.\nTraceback: /home/secret/x.py")
        seen = await user.get(f"/api/ai-jobs/{job['id']}")
        assert seen["status"] == "failed"
        assert seen["error"] == "No such model."
        assert (await user.get("/api/wallet"))["balance"] == 100

    async def test_they_come_newest_first_filtered_and_in_pages(self, user: Caller, effect: int) -> None:
        made = [(await submit(user, effect))["id"] for _ in range(3)]
        await user.post(f"/api/ai-jobs/{made[1]}/cancel")
        assert await ids(user) == made[::-1]
        assert await ids(user, "?status=canceled") == [made[1]]
        assert await ids(user, "?status=queued&limit=1") == [made[2]]
        first = await user.get("/api/ai-jobs?limit=2")
        assert await ids(user, f"?limit=2&cursor={first['next_cursor']}") == [made[0]]
        problem_of(await user.call("GET", "/api/ai-jobs?status=lost"), 422)

    @pytest.mark.parametrize("search", ["ZEPP", "zepp", "Über", "100%25", "_of", "ID"])
    async def test_they_are_found_by_a_part_of_a_label_or_an_id(self, user: Caller, effect: int, search: str) -> None:
        wanted = (await submit(user, effect, label="Über 100% Zeppelins_of"))["id"]
        await submit(user, effect, label="Boats x of 1000")
        given = wanted[-12:].upper() if search == "ID" else search
        assert await ids(user, f"?search={given}") == [wanted]

    @pytest.mark.parametrize("search", ["LIGHTHOUSE", "fog%22 at", "100%25"])
    async def test_they_are_found_by_a_part_of_what_they_run_with(self, api: Api, user: Caller, search: str) -> None:
        properties = [{"key": "prompt", "type": "text", "placeholder": "{{P}}", "user_configurable": True}]
        graph = {"1": {"class_type": "CLIPTextEncode", "inputs": {"text": "{{P}}"}}}
        made = await user.post("/api/workflows", {"graph": graph, "properties": properties})
        found = []
        for number, text in enumerate(['a lighthouse in "fog" at 100%', "boats, 1000"]):
            wish = {"workflow_slug": made["slug"], "idempotency_key": str(number), "input_payload": {"prompt": text}}
            found.append((await user.post("/api/ai-jobs", wish))["id"])
        assert await ids(user, f"?search={search}") == [found[0]]
        # not in what stands beside it: the names of values, files and types
        assert await ids(user, "?search=placeholder") == await ids(user, "?search=output") == []

    async def test_logs_come_in_pages(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        beat = {**lease_of(await lease(worker)), "logs": ["one", "two", "three"]}
        await worker.post("/api/worker/heartbeat", beat)
        first = await user.get(f"/api/ai-jobs/{job['id']}/logs?limit=2")
        assert [each["line"] for each in first["items"]] == ["one", "two"]
        second = await user.get(f"/api/ai-jobs/{job['id']}/logs?limit=2&cursor={first['next_cursor']}")
        assert [each["line"] for each in second["items"]] == ["three"]

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/logs"),
            ("GET", "/events"),
            ("POST", "/cancel"),
            ("POST", "/retry"),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("POST", "/move"),
        ],
    )
    async def test_another_ones_is_not_there(self, api: Api, user: Caller, effect: int, method: str, path: str) -> None:
        job = await submit(user, effect)
        other = await api.user("eve@example.com")
        body = {"to": "top"} if path == "/move" else None
        problem_of(await other.call(method, f"/api/ai-jobs/{job['id']}{path}", body), 404)
        assert await ids(other) == []
        assert (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] == "queued"


class TestVerbs:
    async def test_cancel_gives_the_tokens_back(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        for _ in range(2):
            assert (await user.post(f"/api/ai-jobs/{job['id']}/cancel"))["status"] == "canceled"
        assert (await user.get("/api/wallet"))["balance"] == 100

    async def test_cancel_reaches_a_worker_that_waits_for_it(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        leased = await lease(worker)
        answer = await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        assert answer["status"] == "processing"
        beaten = await worker.post("/api/worker/heartbeat", lease_of(leased))
        assert beaten["stop"] == "cancel"
        await fail(api, worker, leased, "stopped")
        assert (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] == "canceled"

    async def test_what_is_over_cannot_be_canceled(self, api: Api, user: Caller, effect: int) -> None:
        job = await run(api, user, await api.worker(), effect)
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/cancel"), 409)

    async def test_pause_and_resume(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        paused = await user.post(f"/api/ai-jobs/{job['id']}/pause", {"mode": "now"})
        assert (paused["status"], paused["waiting"]["reason"]) == ("paused", "paused")
        resumed = await user.post(f"/api/ai-jobs/{job['id']}/resume")
        assert resumed["status"] == "queued"
        assert data_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/pause"))["status"] == "paused"
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/pause", {"mode": "later"}), 422)

    async def test_retry_makes_a_new_job_once(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/retry"), 409)
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        first = await user.post(f"/api/ai-jobs/{job['id']}/retry")
        again = await user.post(f"/api/ai-jobs/{job['id']}/retry")
        assert (first["status"], first["retry_of"]) == ("queued", job["id"])
        assert first["id"] == again["id"] != job["id"]

    async def test_move_changes_who_goes_first(self, api: Api, user: Caller, effect: int) -> None:
        first, second = [await submit(user, effect) for _ in range(2)]
        await user.post(f"/api/ai-jobs/{second['id']}/move", {"to": "top"})
        assert (await lease(await api.worker()))["job_id"] == second["id"]
        problem_of(await user.call("POST", f"/api/ai-jobs/{second['id']}/move", {"to": "top"}), 409)
        problem_of(await user.call("POST", f"/api/ai-jobs/{first['id']}/move", {"to": "left"}), 422)


class TestDeleting:
    async def test_the_output_goes_and_the_ledger_stays(self, api: Api, user: Caller, effect: int) -> None:
        job = await run(api, user, await api.worker(), effect)
        data_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"))
        assert (await api.anybody.http.get(job["outputs"][0]["url"])).status_code == 404
        problem_of(await user.call("GET", f"/api/ai-jobs/{job['id']}"), 404)
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 404)
        wallet = await user.get("/api/wallet")
        assert wallet["balance"] == 93
        assert [each["type"] for each in wallet["transactions"]] == ["JOB_CONSUME", "JOB_RESERVE", "PAYMENT_CREDIT"]
        assert (await api.engine.operations.reconciler.run()).findings == []

    async def test_what_lost_leases_left_goes_too(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        lost = await lease(worker)
        await worker.http.put(lost["output_url"], content=png(), headers=lost["output_headers"])
        await worker.post("/api/worker/requeue", {**lease_of(lost), "reason": "shutdown"})
        await complete(api, worker, await lease(worker))
        data_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"))
        assert [each.path async for each in api.engine.objects.list("tenants")] == []

    async def test_only_what_is_over(self, api: Api, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 409)
        await user.post(f"/api/ai-jobs/{job['id']}/pause")
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 409)

    async def test_not_while_another_job_needs_the_output(self, api: Api, user: Caller, effect: int) -> None:
        job = await run(api, user, await api.worker(), effect)
        await api.engine.catalogue.workflows.create(
            slug="again",
            graph={"1": {"class_type": "LoadImage", "inputs": {"image": "{{X}}"}}},
            properties=[{"key": "x", "type": "image", "placeholder": "{{X}}", "is_primary_input": True}],
        )
        again = await api.engine.catalogue.effects.create(slug="again", workflow_slug="again", credits_cost=0)
        following = await submit(user, again.id, input_file_id=job["outputs"][0]["file_id"])
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 409)
        await user.post(f"/api/ai-jobs/{following['id']}/cancel")
        data_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"))

    async def test_one_in_the_middle_of_a_chain_of_retries(self, user: Caller, effect: int) -> None:
        first = await submit(user, effect)
        await user.post(f"/api/ai-jobs/{first['id']}/cancel")
        second = await user.post(f"/api/ai-jobs/{first['id']}/retry")
        await user.post(f"/api/ai-jobs/{second['id']}/cancel")
        third = await user.post(f"/api/ai-jobs/{second['id']}/retry")
        data_of(await user.call("DELETE", f"/api/ai-jobs/{second['id']}"))
        assert (await user.get(f"/api/ai-jobs/{third['id']}"))["retry_of"] is None
        assert await user.get(f"/api/ai-jobs/{first['id']}")


class TestMany:
    async def test_a_verb_for_named_ones(self, api: Api, user: Caller, effect: int) -> None:
        made = [(await submit(user, effect))["id"] for _ in range(3)]
        other = await api.user("eve@example.com")
        done = await other.post("/api/ai-jobs/bulk", {"ids": made, "action": "cancel"})
        assert done == {"matched": 0, "changed": 0, "refused": [], "files": 0, "left": []}
        done = await user.post("/api/ai-jobs/bulk", {"ids": made[:2], "action": "cancel"})
        assert (done["matched"], done["changed"]) == (2, 2)
        assert await ids(user, "?status=queued") == [made[2]]
        assert (await user.get("/api/wallet"))["balance"] == 93

    async def test_a_verb_for_all_that_fit(self, user: Caller, effect: int) -> None:
        for _ in range(3):
            await submit(user, effect)
        for action, status, changed in (("pause", "queued", 3), ("resume", "paused", 3), ("cancel", "queued", 3)):
            done = await user.post("/api/ai-jobs/bulk", {"filter": {"status": status}, "action": action})
            assert (done["matched"], done["changed"]) == (3, changed)
        done = await user.post("/api/ai-jobs/bulk", {"filter": {"status": "canceled"}, "action": "retry"})
        assert done["changed"] == 3
        done = await user.post("/api/ai-jobs/bulk", {"filter": {}, "action": "delete"})
        assert (done["matched"], done["changed"], len(done["refused"])) == (6, 3, 3)
        assert "queued" in done["refused"][0]["detail"]

    @pytest.mark.parametrize(
        "body",
        [
            {"action": "cancel"},
            {"action": "cancel", "ids": []},
            {"action": "cancel", "ids": ["a"], "filter": {}},
            {"action": "explode", "ids": ["a"]},
            {"action": "cancel", "ids": ["a\u0000"]},
        ],
    )
    async def test_what_makes_no_sense_is_refused(self, user: Caller, body: dict[str, Any]) -> None:
        problem_of(await user.call("POST", "/api/ai-jobs/bulk", body), 422)


async def test_a_server_may_allow_more_at_once(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_api(sqlite_backend, tmp_path, max_active_jobs_per_user=6) as api:
        user, effect = await api.user(tokens=100), await api.effect()
        for _ in range(6):
            await submit(user, effect)
