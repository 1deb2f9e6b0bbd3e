"""Jobs over HTTP: one job per idempotency key, visible only to their owner, and the actions."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.queue import customer_texts
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.domain.records.jobs import DispatchFilter
from comfyrelay.services.jobs.submission.submit import JobSubmission
from comfyrelay.store.tenant import removals
from tests.support.api import Api, Caller, data_of, open_api, problem_of
from tests.support.api_calls import complete, fail, lease, lease_of, png, run, submit, upload
from tests.support.world import SqliteBackend


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user(tokens=100)


@pytest.fixture
async def effect(api: Api) -> int:
    return await api.effect()


async def ids(user: Caller, query: str = "") -> list[str]:
    return [job["id"] for job in (await user.get(f"/api/ai-jobs{query}"))["items"]]


async def submit_follower(api: Api, user: Caller, job: Any) -> Any:
    """Submit a job that uses the output of `job`; return it."""
    await api.engine.catalogue.workflows.create(
        slug="again",
        graph={"1": {"class_type": "LoadImage", "inputs": {"image": "{{X}}"}}},
        properties=[{"key": "x", "type": "image", "placeholder": "{{X}}", "is_primary_input": True}],
    )
    again = await api.engine.catalogue.effects.create(slug="again", workflow_slug="again", credits_cost=0)
    return await submit(user, again.id, input_file_id=job["outputs"][0]["file_id"])


class TestSubmitting:
    async def test_label_is_stored_without_control_characters(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect, label="a\x07 \x1b[31mcat\u202egnp.exe\n")
        assert job["label"] == "a catgnp.exe "

    async def test_job_is_accepted_and_its_tokens_are_held(self, user: Caller, effect: int) -> None:
        body = {"effect_id": effect, "idempotency_key": "k", "input_payload": {"prompt": "a cow"}, "priority": 1000}
        response = await user.call("POST", "/api/ai-jobs", body)
        assert response.status_code == 201
        job = data_of(response)
        assert (job["status"], job["effect_id"], job["attempts"]) == ("queued", effect, 0)
        # clamped to the range of users
        assert job["priority"] == 10
        assert (job["reserved_tokens"], job["outputs"], job["error"]) == (7, [], None)
        assert (await user.get("/api/wallet"))["balance"] == 93

    async def test_reuse_returns_the_output_of_an_equal_job(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        first = await run(api, user, worker, effect)
        job = await submit(user, effect, reuse=True)
        assert (job["status"], job["reused_from"], job["reserved_tokens"]) == ("completed", first["id"], 0)
        assert (await user.get("/api/wallet"))["balance"] == 93
        [output], [original] = (await user.get(f"/api/ai-jobs/{job['id']}"))["outputs"], first["outputs"]
        assert output["content_hash"] == original["content_hash"]
        assert output["file_id"] != original["file_id"]
        assert output["width"] == original["width"]
        last = (await user.get(f"/api/ai-jobs/{job['id']}/history"))["items"][-1]
        assert (last["type"], last["data"]["reused_from"]) == ("job:completed", first["id"])
        batch = await user.post("/api/batches", {"effect_id": effect, "items": [{}, {}], "reuse": True})
        assert batch["counts"]["completed"] == batch["total"] == 2
        assert (await worker.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"] is None

    async def test_same_request_returns_the_same_job(self, user: Caller, effect: int) -> None:
        body = {"effect_id": effect, "idempotency_key": "k"}
        first = await user.call("POST", "/api/ai-jobs", body)
        again = await user.call("POST", "/api/ai-jobs", body)
        assert (first.status_code, again.status_code) == (201, 200)
        assert data_of(first)["id"] == data_of(again)["id"]
        assert (await user.get("/api/wallet"))["balance"] == 93

    async def test_same_key_for_another_request_is_refused(self, user: Caller, effect: int) -> None:
        await user.post("/api/ai-jobs", {"effect_id": effect, "idempotency_key": "k"})
        other = {"effect_id": effect, "idempotency_key": "k", "input_payload": {"prompt": "another"}}
        response = await user.call("POST", "/api/ai-jobs", other)
        assert problem_of(response, 409)["type"] == "urn:comfyrelay:idempotency_conflict"

    async def test_expected_price_is_charged_or_the_job_is_refused(self, api: Api, user: Caller, effect: int) -> None:
        body = {"effect_id": effect, "idempotency_key": "k", "expected_tokens": 7}
        await api.engine.catalogue.effects.change("clip", {"credits_cost": 9})
        problem = problem_of(await user.call("POST", "/api/ai-jobs", body), 409)
        assert (problem["type"], problem["required_tokens"]) == ("urn:comfyrelay:price_changed", 9)
        assert problem["detail"] == "The price is now 9 tokens, not 7. No job was started. Confirm the new price."
        assert (await ids(user), (await user.get("/api/wallet"))["balance"]) == ([], 100)
        job = await user.post("/api/ai-jobs", {**body, "expected_tokens": 9})
        assert job["reserved_tokens"] == 9
        # the price is not part of the request, so this repeats the accepted request
        again = await user.call("POST", "/api/ai-jobs", {**body, "expected_tokens": 7})
        assert (again.status_code, data_of(again)["id"]) == (200, job["id"])

    async def test_rerun_charges_the_expected_price_or_is_refused(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        await run(api, user, worker, effect)
        free = await submit(user, effect, reuse=True)
        assert (free["reserved_tokens"], free["again_tokens"]) == (0, 7)
        path = f"/api/ai-jobs/{free['id']}/again"
        problem = problem_of(await user.call("POST", path, {"expected_tokens": 0}), 409)
        assert (problem["type"], problem["required_tokens"]) == ("urn:comfyrelay:price_changed", 7)
        assert (await user.post(path, {"expected_tokens": 7}))["reserved_tokens"] == 7
        await fail(api, worker, await lease(worker))
        lost = (await ids(user))[0]
        path = f"/api/ai-jobs/{lost}/retry"
        assert problem_of(await user.call("POST", path, {"expected_tokens": 6}), 409)["required_tokens"] == 7
        assert (await user.post(path, {"expected_tokens": 7}))["reserved_tokens"] == 7

    async def test_job_without_enough_tokens_is_refused(self, api: Api, effect: int) -> None:
        poor = await api.user("poor@example.com", tokens=6)
        response = await poor.call("POST", "/api/ai-jobs", {"effect_id": effect, "idempotency_key": "k"})
        assert problem_of(response, 422)["required_tokens"] == 7
        assert await ids(poor) == []

    async def test_active_jobs_are_limited_to_five(self, user: Caller, effect: int) -> None:
        for _ in range(5):
            await submit(user, effect)
        response = await user.call("POST", "/api/ai-jobs", {"effect_id": effect, "idempotency_key": "k"})
        assert problem_of(response, 429)["type"] == "urn:comfyrelay:too_many_active_jobs"

    async def test_validation_errors_name_the_field(self, api: Api, user: Caller, effect: int) -> None:
        foreign_file = await upload(await api.user("eve@example.com"))
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "idempotency_key"),
            ({"idempotency_key": ""}, "idempotency_key"),
            ({"idempotency_key": "batch:1:2"}, "idempotency_key"),
            ({"idempotency_key": "k", "workflow_slug": "x"}, "effect_id"),
            ({"idempotency_key": "k", "input_payload": {"nothing": 1}}, "nothing"),
            ({"idempotency_key": "k", "input_payload": {"prompt": 5}}, "prompt"),
            ({"idempotency_key": "k", "input_file_id": "no-such-file"}, "input_file_id"),
            ({"idempotency_key": "k", "input_file_id": foreign_file}, "input_file_id"),
            ({"idempotency_key": "k", "video_id": "no-such-video"}, "video_id"),
            ({"idempotency_key": "k", "webhook_url": "ftp://example.com"}, "webhook_url"),
            ({"idempotency_key": "k", "priority": 10**12}, "priority"),
            ({"idempotency_key": "k", "surprise": 1}, "surprise"),
        ]
        for body, field in cases:
            response = await user.call("POST", "/api/ai-jobs", {"effect_id": effect, **body})
            assert field in problem_of(response, 422)["errors"]

    async def test_unknown_effect_is_404(self, user: Caller) -> None:
        for id_ in (999, 2**63 - 1):
            body = {"effect_id": id_, "idempotency_key": "k"}
            problem_of(await user.call("POST", "/api/ai-jobs", body), 404)
        problem_of(await user.call("POST", "/api/ai-jobs", {"effect_id": 2**63, "idempotency_key": "k"}), 422)

    async def test_only_an_administrator_chooses_the_stage(self, api: Api, user: Caller, effect: int) -> None:
        body = {"effect_id": effect, "idempotency_key": "k", "stage": "staging"}
        problem_of(await user.call("POST", "/api/ai-jobs", body), 403)
        admin = await api.user("root@example.com", is_admin=True, tokens=10)
        assert await admin.post("/api/ai-jobs", body)


class TestViews:
    @pytest.mark.both_databases
    async def test_long_values_are_left_out_of_lists(self, api: Api, user: Caller, effect: int) -> None:
        """A page of long values would fill the memory."""
        await api.allow_long_prompts()
        # a quotation mark is stored as two characters
        long, short = "aaa" + '"' * 45_000, "a cow"
        jobs = [await submit(user, effect, input_payload={"prompt": prompt}) for prompt in (long, short)]
        listed = {job["id"]: job["prompt"] for job in (await user.get("/api/ai-jobs"))["items"]}
        assert listed == {jobs[0]["id"]: None, jobs[1]["id"]: short}
        assert (await user.get(f"/api/ai-jobs/{jobs[0]['id']}"))["prompt"].startswith("aaa")

    async def test_waiting_job_shows_its_reason(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        waiting = (await user.get(f"/api/ai-jobs/{job['id']}"))["waiting"]
        assert waiting["reason"] == "no_worker"
        assert waiting["text"]

    async def test_running_job_shows_its_progress(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        leased = await lease(worker)
        # users see numbers, even of newer workers; texts are for operators
        progress = {"done": 0.25, "value": "a quarter", "of": {"a": ["newer"]}}
        beat = {**lease_of(leased), "progress": progress, "logs": ["loading", "sampling"]}
        await worker.post("/api/worker/heartbeat", beat)
        await api.engine.outbox.delivery.idle()
        for seen in (await user.get(f"/api/ai-jobs/{job['id']}"), (await user.get("/api/ai-jobs"))["items"][0]):
            assert (seen["status"], seen["attempts"], seen["progress"]) == ("processing", 1, {"done": 0.25})
            assert seen["waiting"] is None

    async def test_completed_job_shows_its_output_with_a_readable_name(
        self, api: Api, user: Caller, effect: int
    ) -> None:
        job = await run(api, user, await api.worker(), effect)
        [output] = job["outputs"]
        assert output["mime_type"] == "image/png"
        assert output["size"] == len(png("blue"))
        assert output["filename"].startswith("clip-")
        assert output["filename"].endswith(".png")
        got = await api.anonymous.http.get(output["url"])
        assert got.content == png("blue")
        assert got.headers["Content-Disposition"] == f'attachment; filename="{output["filename"]}"'
        assert (job["status"], job["progress"], job["waiting"]) == ("completed", None, None)
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/cancel"), 409)

    async def test_failed_job_shows_the_error_in_one_sentence(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        await fail(api, worker, await lease(worker), "No such model.\nTraceback: /home/secret/x.py")
        seen = await user.get(f"/api/ai-jobs/{job['id']}")
        assert seen["status"] == "failed"
        assert seen["error"] == f"{customer_texts.NOT_INSTALLED} {customer_texts.REFUNDED}"
        assert (await user.get("/api/wallet"))["balance"] == 100

    async def test_jobs_are_filtered_and_paginated_newest_first(self, user: Caller, effect: int) -> None:
        created = [(await submit(user, effect))["id"] for _ in range(3)]
        await user.post(f"/api/ai-jobs/{created[1]}/cancel")
        assert await ids(user) == created[::-1]
        assert await ids(user, "?status=canceled") == [created[1]]
        assert await ids(user, "?status=queued&limit=1") == [created[2]]
        first = await user.get("/api/ai-jobs?limit=2")
        assert await ids(user, f"?limit=2&cursor={first['next_cursor']}") == [created[0]]
        problem_of(await user.call("GET", "/api/ai-jobs?status=lost"), 422)

    async def test_jobs_are_found_by_part_of_label_or_id(self, user: Caller, effect: int) -> None:
        wanted = (await submit(user, effect, label="Über 100% Zeppelins_of"))["id"]
        await submit(user, effect, label="Boats x of 1000")
        for search in ("ZEPP", "zepp", "Über", "100%25", "_of", wanted[-12:].upper(), "-boats", "of -1000"):
            assert await ids(user, f"?q={search}") == [wanted]

    async def test_jobs_are_found_by_part_of_their_inputs(self, api: Api, user: Caller) -> None:
        properties = [{"key": "prompt", "type": "text", "placeholder": "{{P}}", "user_configurable": True}]
        graph = {"1": {"class_type": "CLIPTextEncode", "inputs": {"text": "{{P}}"}}}
        created = await user.post("/api/workflows", {"graph": graph, "properties": properties})
        found = []
        for number, text in enumerate(['a lighthouse in "fog" at 100%', "boats, 1000"]):
            wish = {"workflow_slug": created["slug"], "idempotency_key": str(number), "input_payload": {"prompt": text}}
            found.append((await user.post("/api/ai-jobs", wish))["id"])
        for search in ("LIGHTHOUSE", "fog%22 at", "100%25"):
            assert await ids(user, f"?q={search}") == [found[0]]
        # other fields are not searched: names of values, files and types
        assert await ids(user, "?q=placeholder") == await ids(user, "?q=output") == []

    async def test_logs_are_paginated(self, api: Api, effect: int) -> None:
        user = await api.user("root@example.com", is_admin=True)
        assert user.user is not None
        await api.engine.accounts.ledger.credit(user.user.tenant_id, 10, reference="r")
        worker = await api.worker()
        job = await submit(user, effect)
        beat = {**lease_of(await lease(worker)), "logs": ["one", "two", "three"]}
        await worker.post("/api/worker/heartbeat", beat)
        first = await user.get(f"/api/ai-jobs/{job['id']}/logs?limit=2")
        assert [item["line"] for item in first["items"]] == ["one", "two"]
        second = await user.get(f"/api/ai-jobs/{job['id']}/logs?limit=2&cursor={first['next_cursor']}")
        assert [item["line"] for item in second["items"]] == ["three"]

    async def test_other_users_job_is_404(self, api: Api, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        other = await api.user("eve@example.com")
        calls: list[tuple[str, str]] = [
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/logs"),
            ("GET", "/events"),
            ("POST", "/cancel"),
            ("POST", "/retry"),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("POST", "/move"),
        ]
        for method, path in calls:
            body = {"to": "top"} if path == "/move" else None
            problem_of(await other.call(method, f"/api/ai-jobs/{job['id']}{path}", body), 404)
        assert await ids(other) == []
        assert (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] == "queued"


class TestActions:
    async def test_cancelled_job_is_refunded(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        for _ in range(2):
            assert (await user.post(f"/api/ai-jobs/{job['id']}/cancel"))["status"] == "canceled"
        assert (await user.get("/api/wallet"))["balance"] == 100

    async def test_cancel_is_sent_with_the_next_heartbeat(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        leased = await lease(worker)
        answer = await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        assert answer["status"] == "processing"
        heartbeat = await worker.post("/api/worker/heartbeat", lease_of(leased))
        assert heartbeat["stop"] == "cancel"
        await fail(api, worker, leased, "stopped")
        assert (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] == "canceled"

    async def test_job_is_paused_and_resumed(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        paused = await user.post(f"/api/ai-jobs/{job['id']}/pause", {"mode": "now"})
        assert (paused["status"], paused["waiting"]["reason"]) == ("paused", "paused")
        resumed = await user.post(f"/api/ai-jobs/{job['id']}/resume")
        assert resumed["status"] == "queued"
        assert data_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/pause"))["status"] == "paused"
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/pause", {"mode": "later"}), 422)

    async def test_retry_creates_one_new_job(self, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/retry"), 409)
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        first = await user.post(f"/api/ai-jobs/{job['id']}/retry")
        again = await user.post(f"/api/ai-jobs/{job['id']}/retry")
        assert (first["status"], first["retry_of"]) == ("queued", job["id"])
        assert first["id"] == again["id"] != job["id"]

    async def test_moved_job_is_leased_first(self, api: Api, user: Caller, effect: int) -> None:
        first, second = [await submit(user, effect) for _ in range(2)]
        await user.post(f"/api/ai-jobs/{second['id']}/move", {"to": "top"})
        assert (await lease(await api.worker()))["job_id"] == second["id"]
        problem_of(await user.call("POST", f"/api/ai-jobs/{second['id']}/move", {"to": "top"}), 409)
        problem_of(await user.call("POST", f"/api/ai-jobs/{first['id']}/move", {"to": "left"}), 422)


class TestDeleting:
    async def test_deleted_job_removes_its_output_and_keeps_the_ledger(
        self, api: Api, user: Caller, effect: int
    ) -> None:
        job = await run(api, user, await api.worker(), effect)
        data_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"))
        assert (await api.anonymous.http.get(job["outputs"][0]["url"])).status_code == 404
        problem_of(await user.call("GET", f"/api/ai-jobs/{job['id']}"), 404)
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 404)
        wallet = await user.get("/api/wallet")
        assert wallet["balance"] == 93
        assert [transaction["type"] for transaction in wallet["transactions"]] == [
            "JOB_CONSUME",
            "JOB_RESERVE",
            "PAYMENT_CREDIT",
        ]
        assert (await api.engine.operations.reconciler.run()).findings == []

    async def test_deletion_removes_outputs_of_lost_leases(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        job = await submit(user, effect)
        lost = await lease(worker)
        await worker.http.put(lost["output_url"], content=png(), headers=lost["output_headers"])
        await worker.post("/api/worker/requeue", {**lease_of(lost), "reason": "shutdown"})
        await complete(api, worker, await lease(worker))
        data_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"))
        assert [stored.path async for stored in api.engine.objects.list("tenants")] == []

    async def test_active_job_is_not_deleted(self, api: Api, user: Caller, effect: int) -> None:
        job = await submit(user, effect)
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 409)
        await user.post(f"/api/ai-jobs/{job['id']}/pause")
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 409)

    async def test_job_with_a_needed_output_is_not_deleted(self, api: Api, user: Caller, effect: int) -> None:
        job = await run(api, user, await api.worker(), effect)
        following = await submit_follower(api, user, job)
        problem_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"), 409)
        await user.post(f"/api/ai-jobs/{following['id']}/cancel")
        data_of(await user.call("DELETE", f"/api/ai-jobs/{job['id']}"))

    async def test_job_inside_a_retry_chain_is_deleted(self, user: Caller, effect: int) -> None:
        first = await submit(user, effect)
        await user.post(f"/api/ai-jobs/{first['id']}/cancel")
        second = await user.post(f"/api/ai-jobs/{first['id']}/retry")
        await user.post(f"/api/ai-jobs/{second['id']}/cancel")
        third = await user.post(f"/api/ai-jobs/{second['id']}/retry")
        data_of(await user.call("DELETE", f"/api/ai-jobs/{second['id']}"))
        assert (await user.get(f"/api/ai-jobs/{third['id']}"))["retry_of"] is None
        assert await user.get(f"/api/ai-jobs/{first['id']}")


class TestBulk:
    async def test_bulk_action_changes_own_named_jobs(self, api: Api, user: Caller, effect: int) -> None:
        created = [(await submit(user, effect))["id"] for _ in range(3)]
        other = await api.user("eve@example.com")
        done = await other.post("/api/ai-jobs/bulk", {"ids": created, "action": "cancel"})
        assert done == {"matched": 0, "changed": 0, "refused": [], "files": 0, "not_deleted": [], "as_of": None}
        done = await user.post("/api/ai-jobs/bulk", {"ids": created[:2], "action": "cancel"})
        assert (done["matched"], done["changed"]) == (2, 2)
        assert await ids(user, "?status=queued") == [created[2]]
        assert (await user.get("/api/wallet"))["balance"] == 93

    async def test_bulk_action_changes_matching_jobs(self, user: Caller, effect: int) -> None:
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

    async def test_bulk_retry_keeps_the_order(self, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch) -> None:
        created = [(await submit(user, effect))["id"] for _ in range(5)]
        await user.post("/api/ai-jobs/bulk", {"ids": created, "action": "cancel"})
        single_retries: list[str] = []
        once = JobSubmission.retry_once

        async def counted(self: JobSubmission, tenant_id: str, job_id: str, **more: Any) -> Any:
            single_retries.append(job_id)
            return await once(self, tenant_id, job_id, **more)

        monkeypatch.setattr(JobSubmission, "retry_once", counted)
        balance = (await user.get("/api/wallet"))["balance"]
        for changed in (5, 0):
            # repeating the request changes nothing
            done = await user.post("/api/ai-jobs/bulk", {"ids": created, "action": "retry"})
            assert (done["matched"], done["changed"], done["refused"]) == (5, changed, [])
        assert single_retries == []
        assert (await user.get("/api/wallet"))["balance"] < balance
        found = {job["retry_of"]: job["id"] for job in (await user.get("/api/ai-jobs?status=queued"))["items"]}
        assert found.keys() == set(created)
        assert [found[job_id] for job_id in created] == sorted(found.values())

    async def test_bulk_retry_names_refused_jobs(self, user: Caller, effect: int) -> None:
        canceled, queued = [(await submit(user, effect))["id"] for _ in range(2)]
        await user.post(f"/api/ai-jobs/{canceled}/cancel")
        done = await user.post("/api/ai-jobs/bulk", {"ids": [canceled, queued], "action": "retry"})
        assert (done["matched"], done["changed"]) == (2, 1)
        assert [refusal["id"] for refusal in done["refused"]] == [queued]
        assert "this one is queued" in done["refused"][0]["detail"]

    async def test_bulk_action_skips_jobs_that_match_later(self, user: Caller, effect: int) -> None:
        created = [(await submit(user, effect))["id"] for _ in range(4)]
        await user.post("/api/ai-jobs/bulk", {"ids": created[:2], "action": "cancel"})
        delete = {"filter": {"status": "canceled"}, "action": "delete"}
        counted = await user.post("/api/ai-jobs/bulk", {**delete, "dry_run": True})
        anything = await user.post("/api/ai-jobs/bulk", {"filter": {}, "action": "delete", "dry_run": True})
        assert (counted["matched"], anything["matched"]) == (2, 4)
        await user.post("/api/ai-jobs/bulk", {"ids": created[2:3], "action": "cancel"})
        done = await user.post("/api/ai-jobs/bulk", {**delete, "as_of": counted["as_of"]})
        assert (done["matched"], done["changed"]) == (2, 2)
        assert await ids(user) == [created[3], created[2]]
        # without a status filter, jobs that change were already counted, and only the new job was not
        new = (await submit(user, effect))["id"]
        cancel = {"filter": {}, "action": "cancel", "as_of": anything["as_of"]}
        assert (await user.post("/api/ai-jobs/bulk", cancel))["changed"] == 1
        assert await ids(user, "?status=queued") == [new]

    async def test_stale_bulk_count_is_refused(self, user: Caller, effect: int) -> None:
        created = (await submit(user, effect))["id"]
        for old in ("1-1", "999999999999-1"):
            body = {"filter": {"status": "queued"}, "action": "cancel", "as_of": old}
            assert "Count the jobs" in problem_of(await user.call("POST", "/api/ai-jobs/bulk", body), 409)["detail"]
        assert await ids(user, "?status=queued") == [created]

    async def test_bulk_delete_skips_jobs_in_use(
        self, api: Api, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = await api.worker()
        created = [(await run(api, user, worker, effect))["id"] for _ in range(5)]
        live = await submit_follower(api, user, await user.get(f"/api/ai-jobs/{created[3]}"))
        sets: list[int] = []
        remove = removals.remove_jobs

        async def counted(tx: Any, tenant_id: str, job_ids: list[str]) -> None:
            sets.append(len(job_ids))
            await remove(tx, tenant_id, job_ids)

        monkeypatch.setattr(removals, "remove_jobs", counted)
        done = await user.post("/api/ai-jobs/bulk", {"ids": [*created, live["id"]], "action": "delete"})
        assert (done["matched"], done["changed"]) == (6, 4)
        assert sorted((refusal["id"], refusal["detail"].split()[0]) for refusal in done["refused"]) == sorted(
            [(created[3], "An"), (live["id"], "Only")]
        )
        assert await ids(user) == [live["id"], created[3]]
        await user.post(f"/api/ai-jobs/{live['id']}/cancel")
        sets.clear()
        done = await user.post("/api/ai-jobs/bulk", {"filter": {}, "action": "delete"})
        assert (done["changed"], sets) == (2, [2])

    async def test_invalid_bulk_request_is_refused(self, user: Caller) -> None:
        bodies: list[dict[str, Any]] = [
            {"action": "cancel"},
            {"action": "cancel", "filter": {}, "as_of": "now"},
            {"action": "cancel", "ids": []},
            {"action": "cancel", "ids": ["a"], "filter": {}},
            {"action": "explode", "ids": ["a"]},
            {"action": "cancel", "ids": ["a\u0000"]},
        ]
        for body in bodies:
            problem_of(await user.call("POST", "/api/ai-jobs/bulk", body), 422)


async def test_active_job_limit_is_configurable(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with open_api(sqlite_backend, tmp_path, max_active_jobs_per_user=6) as api:
        user, effect = await api.user(tokens=100), await api.effect()
        for _ in range(6):
            await submit(user, effect)


class TestJobDetails:
    async def test_refund_is_shown_for_old_jobs(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        lost = await submit(user, effect)
        assert lost["refunded_tokens"] == 0
        await fail(api, worker, await lease(worker))
        assert user.user is not None
        for number in range(210):
            await api.engine.accounts.ledger.credit(user.user.tenant_id, 1, reference=f"r-{number}")
        assert (await user.get(f"/api/ai-jobs/{lost['id']}"))["refunded_tokens"] == 7
        assert [job["refunded_tokens"] for job in (await user.get("/api/ai-jobs"))["items"]] == [7]

    async def test_prefetched_job_shows_its_position(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        first, second = [await submit(user, effect) for _ in range(2)]
        running = await lease(worker)
        fetched = (await worker.post("/api/worker/poll", {"worker_id": "gpu-1", "current_load": 1, "prefetch": 1}))[
            "job"
        ]
        await api.engine.outbox.delivery.idle()
        shown = [await user.get(f"/api/ai-jobs/{job['id']}") for job in (first, second)]
        assert [(job["status"], job["is_prefetched"]) for job in shown] == [
            ("processing", False),
            ("queued", True),
        ]
        # the list shows and filters prefetched jobs in the same way
        assert [job["status"] for job in (await user.get("/api/ai-jobs"))["items"]] == ["queued", "processing"]
        assert await ids(user, "?status=queued") == [second["id"]]
        assert await ids(user, "?status=processing") == [first["id"]]
        assert shown[0]["waiting"] is None
        assert (shown[1]["waiting"]["position"], shown[1]["waiting"]["reason"]) == (1, "busy")
        assert await ids(user, "?status=waiting") == [second["id"]]
        assert await ids(user, "?status=running") == [first["id"]]
        await complete(api, worker, running)
        await worker.post("/api/worker/heartbeat", {**lease_of(fetched), "progress": {"phase": "running"}})
        started = await user.get(f"/api/ai-jobs/{second['id']}")
        assert (started["is_prefetched"], started["waiting"]) == (False, None)
        assert await ids(user, "?status=running") == [second["id"]]

    async def test_cancelling_job_shows_the_request_and_its_actor(self, api: Api, user: Caller, effect: int) -> None:
        worker = await api.worker()
        mine, theirs = [await submit(user, effect) for _ in range(2)]
        leased = await lease(worker)
        path = f"/api/ai-jobs/{mine['id']}"
        assert (await user.post(f"{path}/cancel"))["cancel_requested_at"] is not None
        assert (await user.get(path))["canceled_by"] is None
        await fail(api, worker, leased, "stopped")
        assert (await user.get(path))["canceled_by"] == "user"
        waiting = DispatchFilter(status=DispatchStatus.QUEUED)
        [found] = (await api.engine.operations.inspection.dispatches(waiting, limit=2)).items
        await api.engine.operations.inspection.cancel(found.dispatch.id)
        await api.engine.outbox.delivery.idle()
        assert (await user.get(f"/api/ai-jobs/{theirs['id']}"))["canceled_by"] == "administrator"
        running = await submit(user, effect)
        leased = await lease(worker)
        await api.engine.operations.inspection.cancel(leased["dispatch_id"])
        await fail(api, worker, leased, "stopped")
        shown = await user.get(f"/api/ai-jobs/{running['id']}")
        assert (shown["status"], shown["canceled_by"]) == ("canceled", "administrator")
