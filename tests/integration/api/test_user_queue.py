"""The queue as a list: batches and single jobs, running, waiting and finished; searched, filtered and reordered."""

from typing import Any

import pytest

from comfyrelay.services.jobs.views import queue_entries, units
from tests.support.api import Api, Caller, problem_of
from tests.support.api_calls import complete, fail, lease, png, run, submit, upload


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user(tokens=1000)


@pytest.fixture
async def effect(api: Api) -> int:
    return await api.effect()


@pytest.fixture
async def worker(api: Api, effect: int) -> Caller:
    return await api.worker()


async def queue(user: Caller, query: str = "") -> list[Any]:
    return list((await user.get(f"/api/queue{query}"))["items"])


async def ids(user: Caller, query: str = "") -> list[str]:
    return [entry["id"] for entry in await queue(user, query)]


async def batch(user: Caller, effect: int, items: int = 2, **more: Any) -> str:
    body = {"effect_id": effect, "items": [{} for _ in range(items)], **more}
    return str((await user.post("/api/batches", body))["id"])


async def fail_permanently(api: Api, user: Caller, worker: Caller, effect: int, **more: Any) -> str:
    job = await submit(user, effect, **more)
    while (await user.get(f"/api/ai-jobs/{job['id']}"))["status"] != "failed":
        await fail(api, worker, await lease(worker))
    return str(job["id"])


class TestSections:
    async def test_queue_lists_running_then_waiting_then_finished_jobs(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        done = await run(api, user, worker, effect)
        many = await batch(user, effect, 3, label="Cats")
        await lease(worker)
        await api.engine.outbox.delivery.idle()
        first, second = [(await submit(user, effect))["id"] for _ in range(2)]
        paused = (await submit(user, effect))["id"]
        await user.post(f"/api/ai-jobs/{paused}/pause")
        await user.post(f"/api/ai-jobs/{second}/move", {"to": "up"})
        found = await queue(user)
        assert [(entry["id"], entry["status"]) for entry in found] == [
            (many, "running"),
            (second, "waiting"),
            (first, "waiting"),
            (paused, "paused"),
            (done["id"], "completed"),
        ]
        cats = found[0]
        assert (cats["is_batch"], cats["label"], cats["total"], cats["kind"]) == (True, "Cats", 3, "image")
        assert (cats["counts"]["processing"], cats["counts"]["queued"]) == (1, 2)
        assert [cat["item_no"] for cat in cats["items"]] == [0, 1, 2]
        assert cats["workflow_slug"] == done["workflow_slug"]
        assert found[1]["waiting_text"] == "Position 1. Other jobs run first."
        assert found[1]["waiting_reason"] == "busy"
        assert cats["first_label"] == (await user.get(f"/api/ai-jobs/{cats['items'][0]['id']}"))["label"]
        assert found[0]["waiting_text"] is found[-1]["waiting_text"] is None
        assert found[-1]["ended_at"] == done["completed_at"]
        # all entries, sorted by creation time
        created = [done["id"], many, first, second, paused]
        assert await ids(user, "?sort=oldest") == created
        assert await ids(user, "?sort=newest") == created[::-1]

    async def test_waiting_entries_show_position_and_start(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        # More than the usual limit of a user.
        assert user.user is not None
        await api.engine.accounts.tenancy.set_limits(user.user.tenant_id, {"max_active_jobs": 100})
        await run(api, user, worker, effect)
        await submit(user, effect)
        await lease(worker)
        await api.engine.outbox.delivery.idle()
        for _ in range(7):
            await submit(user, effect)
        await batch(user, effect, 2)
        waiting = await queue(user, "?status=waiting")
        assert [entry["waiting_text"].partition(".")[0] for entry in waiting] == [f"Position {n}" for n in range(1, 9)]
        assert None not in [entry["starts_in_seconds"] for entry in waiting]

    async def test_every_entry_is_on_one_page(self, api: Api, user: Caller, effect: int, worker: Caller) -> None:
        ended = [(await run(api, user, worker, effect))["id"] for _ in range(3)]
        waiting = [await batch(user, effect), *[(await submit(user, effect))["id"] for _ in range(3)]]
        for query, wanted in (
            ("", [*waiting, *ended[::-1]]),
            ("&sort=oldest", [*ended, *waiting]),
            ("&status=completed", ended[::-1]),
            ("&status=waiting", waiting),
            ("&status=failed", []),
        ):
            for limit in (1, 2, 3, 4, 50):
                found, cursor = [], ""
                for _ in range(20):
                    page = await user.get(f"/api/queue?limit={limit}{query}{cursor}")
                    assert len(page["items"]) <= limit
                    found += [item["id"] for item in page["items"]]
                    if page["next_cursor"] is None:
                        break
                    cursor = f"&cursor={page['next_cursor']}"
                assert found == wanted, (query, limit)

    async def test_page_is_stable_when_an_entry_leaves(self, user: Caller, effect: int) -> None:
        jobs = [(await submit(user, effect))["id"] for _ in range(4)]
        page = await user.get("/api/queue?limit=2")
        await user.post(f"/api/ai-jobs/{jobs[1]}/cancel")
        rest = await ids(user, f"?cursor={page['next_cursor']}")
        assert {jobs[2], jobs[3]} <= set(rest)
        problem_of(await user.call("GET", "/api/queue?cursor=nonsense"), 422)
        problem_of(await user.call("GET", "/api/queue?cursor=line_x_y"), 422)

    async def test_ended_batch_shows_its_worst_status(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        many = await batch(user, effect, 2)
        await complete(api, worker, await lease(worker))
        while (await user.get(f"/api/batches/{many}"))["done"] < 2:
            await fail(api, worker, await lease(worker), "The prompt is empty.")
        [entry] = await queue(user)
        assert (entry["status"], entry["counts"]["completed"], entry["counts"]["failed"]) == ("failed", 1, 1)
        assert entry["error"]
        assert entry["ended_at"]
        # a status filter lists everything that has a job of that status, with the number of matching jobs
        for status in ("failed", "completed"):
            [entry] = await queue(user, f"?status={status}")
            assert (entry["id"], entry["total"], entry["matched"]) == (many, 2, 1)
        assert await ids(user, "?status=canceled") == []


class TestCounts:
    async def matched(self, user: Caller, **wanted: Any) -> int:
        body = {"action": "cancel", "filter": wanted, "dry_run": True}
        return int((await user.post("/api/ai-jobs/bulk", body))["matched"])

    async def test_list_counts_and_bulk_actions_agree(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        """This includes partly finished batches, retried items and prefetched jobs."""
        await run(api, user, worker, effect)
        mixed = await batch(user, effect, 4, label="Mixed")
        await complete(api, worker, await lease(worker))
        while (await user.get(f"/api/batches/{mixed}"))["done"] < 2:
            await fail(api, worker, await lease(worker))
        await user.post(f"/api/batches/{mixed}/retry-failed", {})
        await user.post(f"/api/batches/{mixed}/pause")
        await fail_permanently(api, user, worker, effect)
        waits = await batch(user, effect, 3, label="Waits")
        await lease(worker)
        fetched = await worker.post("/api/worker/poll", {"worker_id": "gpu-1", "current_load": 1, "prefetch": 1})
        assert fetched["job"] is not None
        await api.engine.outbox.delivery.idle()
        for item in (await user.get(f"/api/queue/{waits}/items"))["items"][2:]:
            await user.post(f"/api/ai-jobs/{item['id']}/cancel")
        counts = (await api.engine.jobs.overview.summary((await user.get("/api/me"))["tenant_id"], limit=1)).counts
        assert min(counts.values()) > 0
        assert {entry["label"]: entry["fetched"] for entry in await queue(user, "?status=waiting")} == {"Waits": 1}
        words = {"processing": "running", "queued": "waiting"}
        for status, count in counts.items():
            word = words.get(status, status)
            listed = sum(entry["matched"] for entry in await queue(user, f"?status={word}"))
            newest = sum(entry["matched"] for entry in await queue(user, f"?status={word}&sort=newest"))
            assert (word, listed, newest, await self.matched(user, status=word)) == (word, count, count, count)
        assert sum(counts.values()) == sum(entry["matched"] for entry in await queue(user)) == await self.matched(user)
        [found] = await queue(user, "?status=completed&q=mixed")
        assert found["matched"] == await self.matched(user, status="completed", q="mixed", batch_id=mixed) == 1


class TestSearch:
    async def test_entries_are_found_by_text_and_workflow(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        ended = await run(api, user, worker, effect, label="a red boat")
        many = await batch(user, effect, label="Boats")
        other = await submit(user, effect, label="a zebra")
        assert await ids(user, "?q=BOAT") == [many, ended["id"]]
        assert await ids(user, "?q=boat&status=waiting") == [many]
        assert await ids(user, "?q=boat red") == [ended["id"]]
        assert await ids(user, '?q="red boat"') == [ended["id"]]
        assert await ids(user, '?q="boat red"') == []
        assert await ids(user, "?q=-boat") == [other["id"]]
        assert await ids(user, "?q=boat -red") == [many]
        assert await ids(user, f"?q={other['id']}") == [other["id"]]
        assert len(await ids(user, f"?workflow={ended['workflow_slug']}")) == 3
        assert await ids(user, "?workflow=nothing") == []
        assert await ids(user, f"?workflow={ended['workflow_slug']}&q=zebra") == [other["id"]]

    async def test_job_list_and_bulk_actions_share_filters(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        ended = await run(api, user, worker, effect, label="boat 1")
        slug = ended["workflow_slug"]
        boats = [(await submit(user, effect, label=f"boat {n}"))["id"] for n in (2, 3)]
        cat = (await submit(user, effect, label="a cat"))["id"]
        listed = [job["id"] for job in (await user.get(f"/api/ai-jobs?q=boat&workflow={slug}&sort=oldest"))["items"]]
        assert listed == [ended["id"], *boats]
        page = await user.get("/api/ai-jobs?q=boat&sort=oldest&limit=1")
        page = await user.get(f"/api/ai-jobs?q=boat&sort=oldest&limit=1&cursor={page['next_cursor']}")
        assert [item["id"] for item in page["items"]] == boats[:1]
        assert (await user.get("/api/ai-jobs?workflow=nothing"))["items"] == []
        wanted = {"q": "boat", "workflow": slug, "status": "queued"}
        done = await user.post("/api/ai-jobs/bulk", {"action": "cancel", "filter": wanted})
        assert (done["matched"], done["changed"]) == (2, 2)
        assert await ids(user, "?status=waiting") == [cat]

    async def test_queue_contains_only_own_entries(self, api: Api, user: Caller, effect: int) -> None:
        other = await api.user("eve@example.com", tokens=10)
        theirs = await batch(user, effect)
        await submit(user, effect)
        mine = (await submit(other, effect))["id"]
        assert await ids(other) == await ids(other, "?sort=oldest") == [mine]
        problem_of(await other.call("GET", f"/api/queue/{theirs}/items"), 404)


class TestRetries:
    async def test_retried_job_names_its_retry(self, user: Caller, effect: int) -> None:
        job = (await submit(user, effect))["id"]
        await user.post(f"/api/ai-jobs/{job}/cancel")
        assert (await user.get(f"/api/ai-jobs/{job}"))["retried_as"] is None
        again = (await user.post(f"/api/ai-jobs/{job}/retry"))["id"]
        assert (await user.get(f"/api/ai-jobs/{job}"))["retried_as"] == again
        assert {entry["id"]: entry["retried_as"] for entry in await queue(user)} == {again: None, job: again}


class TestItems:
    async def test_batch_items_are_paginated(self, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(units, "MAX_ITEMS", 2)
        monkeypatch.setattr(queue_entries, "MAX_ITEMS", 2)
        many = await batch(user, effect, 5)
        [entry] = await queue(user)
        assert [item["item_no"] for item in entry["items"]] == [0, 1]
        page = await user.get(f"/api/queue/{many}/items?limit=2&cursor={entry['next_cursor']}")
        assert [item["item_no"] for item in page["items"]] == [2, 3]
        page = await user.get(f"/api/queue/{many}/items?limit=2&cursor={page['next_cursor']}")
        assert ([item["item_no"] for item in page["items"]], page["next_cursor"]) == ([4], None)
        assert (await user.get(f"/api/queue/{many}/items?status=failed"))["items"] == []
        assert len((await user.get(f"/api/queue/{many}/items"))["items"]) == 5

    async def test_item_is_shown_as_its_newest_attempt(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        many = await batch(user, effect, 1)
        [first] = (await user.get(f"/api/queue/{many}/items"))["items"]
        await user.post(f"/api/ai-jobs/{first['id']}/cancel")
        again = await user.post(f"/api/ai-jobs/{first['id']}/retry")
        [entry] = await queue(user)
        assert [item["id"] for item in entry["items"]] == [again["id"]]
        assert entry["total"] == 1


class TestOrder:
    async def test_job_and_batch_are_moved_before_and_after_entries(self, user: Caller, effect: int) -> None:
        a, b = [(await submit(user, effect))["id"] for _ in range(2)]
        many = await batch(user, effect)
        c = (await submit(user, effect))["id"]
        await user.post(f"/api/ai-jobs/{c}/move", {"before": a})
        assert await ids(user) == [c, a, b, many]
        await user.post(f"/api/ai-jobs/{c}/move", {"before": many})
        assert await ids(user) == [a, b, c, many]
        await user.post(f"/api/batches/{many}/move", {"before": b})
        assert await ids(user) == [a, many, b, c]
        # an entry that is moved before an item of a batch is placed before the whole batch
        second = (await user.get(f"/api/queue/{many}/items"))["items"][1]["id"]
        await user.post(f"/api/ai-jobs/{c}/move", {"before": second})
        assert await ids(user) == [a, c, many, b]
        await user.post(f"/api/ai-jobs/{a}/move", {"to": "bottom"})
        assert await ids(user) == [c, many, b, a]
        await user.post(f"/api/ai-jobs/{a}/move", {"after": many})
        assert await ids(user) == [c, many, a, b]
        await user.post(f"/api/ai-jobs/{c}/move", {"after": second})
        assert await ids(user) == [many, c, a, b]
        await user.post(f"/api/batches/{many}/move", {"after": b})
        assert await ids(user) == [c, a, b, many]
        problem_of(await user.call("POST", f"/api/ai-jobs/{a}/move", {"after": b, "before": c}), 422)

    async def test_item_is_moved_within_its_batch(self, api: Api, user: Caller, effect: int, worker: Caller) -> None:
        many = await batch(user, effect, 3)
        items = [item["id"] for item in (await user.get(f"/api/queue/{many}/items"))["items"]]
        await user.post(f"/api/ai-jobs/{items[2]}/move", {"before": items[1]})
        order = []
        for _ in items:
            await complete(api, worker, await lease(worker))
            found = (await user.get(f"/api/queue/{many}/items?status=completed"))["items"]
            order += [item["id"] for item in found if item["id"] not in order]
        assert order == [items[0], items[2], items[1]]

    async def test_impossible_move_is_refused_with_a_reason(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        ended = (await run(api, user, worker, effect))["id"]
        other = await api.user("eve@example.com", tokens=10)
        theirs = (await submit(other, effect))["id"]
        job = (await submit(user, effect))["id"]
        first = (await submit(user, effect, priority=5))["id"]
        for before, why in ((ended, "is not waiting"), (theirs, "is not waiting"), (first, "another priority")):
            response = await user.call("POST", f"/api/ai-jobs/{job}/move", {"before": before})
            assert why in problem_of(response, 409)["detail"]
        for body in ({}, {"to": "top", "before": first}, {"to": "nowhere"}):
            problem_of(await user.call("POST", f"/api/ai-jobs/{job}/move", body), 422)
        answer = await user.call("POST", f"/api/ai-jobs/{job}/move", {"before": job})
        assert answer.json()["message"].startswith("It is already there.")

    async def test_bulk_move_keeps_the_order(self, user: Caller, effect: int) -> None:
        a, b, c, d = [(await submit(user, effect, label=f"{n % 2}-kind"))["id"] for n in range(4)]
        done = await user.post("/api/ai-jobs/bulk", {"action": "move", "to": "top", "filter": {"q": "1-kind"}})
        assert (done["matched"], done["changed"]) == (2, 2)
        assert await ids(user) == [b, d, a, c]
        await user.post("/api/ai-jobs/bulk", {"action": "move", "to": "bottom", "ids": [b, a]})
        assert await ids(user) == [d, c, b, a]

    async def test_dry_run_counts_matches_and_changes_nothing(self, api: Api, user: Caller, effect: int) -> None:
        a, b, c = [(await submit(user, effect, label=label))["id"] for label in ("lake", "lake", "hill")]
        other = await api.user("eve@example.com", tokens=10)
        await submit(other, effect, label="lake")
        found: list[dict[str, Any]] = [
            *({"filter": {"q": "lake"}}, {"filter": {}}),
            *({"ids": [a, c]}, {"filter": {"status": "failed"}}),
        ]
        for action in ("cancel", "delete", "pause", "retry"):
            bodies = [{"action": action, "dry_run": True, **selection} for selection in found]
            done = [await user.post("/api/ai-jobs/bulk", body) for body in bodies]
            assert [result["matched"] for result in done] == [2, 3, 2, 0]
            assert {result["changed"] for result in done} == {0}
        assert await ids(user, "?status=waiting") == [a, b, c]
        assert await ids(other, "?status=waiting") != []

    async def test_bulk_priority_is_clamped(self, api: Api, user: Caller, effect: int) -> None:
        a, b, c = [(await submit(user, effect))["id"] for _ in range(3)]
        done = await user.post("/api/ai-jobs/bulk", {"action": "priority", "priority": 10**6, "ids": [b, c]})
        assert (done["matched"], done["changed"]) == (2, 2)
        assert await ids(user) == [b, c, a]
        most = api.engine.settings.user_priority_max
        assert [entry["priority"] for entry in await queue(user)] == [most, most, 0]
        for body in ({"action": "priority"}, {"action": "cancel", "priority": 1}, {"action": "move"}):
            problem_of(await user.call("POST", "/api/ai-jobs/bulk", {**body, "ids": [a]}), 422)


class TestDetails:
    async def test_job_shows_its_workflow_prompt_and_input(self, api: Api, user: Caller, worker: Caller) -> None:
        file_id = await upload(user, png(), name="cat.png")
        properties = [
            {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "user_configurable": True},
            {
                "key": "picture",
                "type": "image",
                "placeholder": "{{IMAGE}}",
                "user_configurable": True,
                "is_primary_input": True,
            },
        ]
        graph = {
            "1": {"class_type": "LoadImage", "inputs": {"image": "{{IMAGE}}"}},
            "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "{{PROMPT}}", "clip": ["4", 1]}},
            "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
        }
        await api.engine.catalogue.workflows.create(
            slug="painted",
            graph=graph,
            properties=properties,
            output_node_id="3",
            output_extension="png",
            output_mime_type="image/png",
        )
        effect = (await api.engine.catalogue.effects.create(slug="painted", workflow_slug="painted", credits_cost=1)).id
        created = await submit(user, effect, input_file_id=file_id, input_payload={"prompt": "x" * 300})
        job = await user.get(f"/api/ai-jobs/{created['id']}")
        assert job["workflow_slug"]
        assert job["workflow_name"]
        assert job["prompt"] == "x" * 199 + "…"
        assert (job["input"]["name"], job["input"]["mime_type"], job["input"]["poster_url"]) == (
            "cat.png",
            "image/png",
            None,
        )
        assert (await user.http.get(job["input"]["url"])).content == png()

    async def test_output_becomes_an_input_that_outlives_its_job(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        job = await run(api, user, worker, effect)
        [output] = job["outputs"]
        assert (output["width"], output["height"], output["seconds"], output["preview_url"]) == (8, 8, None, None)
        created = await user.call("POST", f"/api/ai-jobs/{job['id']}/outputs/1/as-input")
        assert created.status_code == 201
        file = created.json()["data"]
        assert (file["original_filename"], file["mime_type"]) == (output["filename"], "image/png")
        problem_of(await user.call("POST", f"/api/ai-jobs/{job['id']}/outputs/2/as-input"), 404)
        await user.call("DELETE", f"/api/ai-jobs/{job['id']}")
        video = await user.post("/api/videos", {"original_file_id": file["id"]})
        assert (await user.http.get(video["original_file_url"])).content == png("blue")


class TestClearing:
    async def test_clearing_hides_ended_entries_without_deleting(
        self, api: Api, user: Caller, effect: int, worker: Caller
    ) -> None:
        done = await run(api, user, worker, effect)
        mixed = await batch(user, effect, 2, label="Mixed")
        await complete(api, worker, await lease(worker))
        while (await user.get(f"/api/batches/{mixed}"))["done"] < 2:
            await fail(api, worker, await lease(worker))
        active = await batch(user, effect, 2, label="Active")
        await complete(api, worker, await lease(worker))
        selection = {"status": ["completed"], "dry_run": True}
        assert (await user.post("/api/queue/clear", selection)) == {
            "found": {"completed": 2, "failed": 1},
            "cleared": 1,
        }
        both = await user.post("/api/queue/clear", {"status": ["completed", "failed"], "dry_run": True})
        assert both["cleared"] == 3
        # the filters also count the completed item of the unfinished batch
        counts = (await user.get("/api/queue/counts"))["counts"]
        assert (counts["completed"], counts["failed"]) == (3, 1)
        assert await ids(user) == [active, mixed, done["id"]]
        assert (await user.post("/api/queue/clear", {"status": ["completed"]}))["cleared"] == 1
        assert await ids(user) == await ids(user, "?sort=newest") == [active, mixed]
        assert (await user.post("/api/queue/clear", {"status": ["failed", "canceled"]}))["cleared"] == 0
        assert (await user.post("/api/queue/clear", {"status": ["completed", "failed"]}))["cleared"] == 2
        for query in ("", "?status=failed", "?status=completed", "?q=mixed", "?sort=oldest"):
            assert mixed not in await ids(user, query)
        # counts of the queue exclude cleared entries, and other counts include them
        numbers = TestCounts()
        assert await numbers.matched(user, in_queue=True) == 2
        assert await numbers.matched(user) == 5
        tenant_id = (await user.get("/api/me"))["tenant_id"]
        assert sum((await api.engine.jobs.overview.counts(tenant_id)).values()) == 2
        assert (await user.get(f"/api/ai-jobs/{done['id']}"))["outputs"]
        assert len((await user.get("/api/gallery"))["items"]) == 3
        # a batch with retried items appears again as a whole
        await user.post(f"/api/batches/{mixed}/retry-failed", {})
        [entry] = await queue(user, "?q=mixed")
        assert (entry["total"], entry["matched"], entry["counts"]["completed"]) == (2, 2, 1)
        assert sum((await api.engine.jobs.overview.counts(tenant_id)).values()) == 4

    async def test_clearing_affects_own_entries_only(self, api: Api, user: Caller, effect: int, worker: Caller) -> None:
        done = await run(api, user, worker, effect)
        other = await api.user("eve@example.com", tokens=10)
        assert (await other.post("/api/queue/clear", {"status": ["completed"]}))["cleared"] == 0
        assert await ids(user) == [done["id"]]
        problem_of(await user.call("POST", "/api/queue/clear", {"status": ["running"]}), 422)


async def test_saved_views_are_private(api: Api, user: Caller) -> None:
    saved = await user.call("PUT", "/api/views", {"area": "queue", "name": "lights", "search": {"q": "a"}})
    assert saved.json()["data"]["search"] == {"q": "a"}
    await user.call("PUT", "/api/views", {"area": "queue", "name": "lights", "search": {"q": "b", "sort": "newest"}})
    [view] = (await user.get("/api/views"))["items"]
    assert (view["name"], view["search"]) == ("lights", {"q": "b", "sort": "newest"})
    other = await api.user("eve@example.com")
    assert (await other.get("/api/views"))["items"] == []
    problem_of(await other.call("DELETE", f"/api/views/{view['id']}"), 404)
    problem_of(await user.call("PUT", "/api/views", {"area": "queue", "name": "x", "search": {"Q!": "a"}}), 422)
    assert (await user.call("DELETE", f"/api/views/{view['id']}")).status_code == 200
    assert (await user.get("/api/views"))["items"] == []
