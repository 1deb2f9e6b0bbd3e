"""The gallery: its owner finds, marks, collects, downloads and deletes outputs."""

import io
import re
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.domain.gallery import archive_names
from comfyrelay.domain.ids import job_folder, new_id, source_path
from tests.support.api import Api, Caller, open_api, problem_of
from tests.support.api_calls import complete, lease, png, run, submit
from tests.support.world import PostgresBackend, SqliteBackend, execute

pytestmark = pytest.mark.both_databases


@dataclass
class Scenario:
    """A user, and a worker that produces the outputs."""

    api: Api
    user: Caller
    worker: Caller
    effect_id: int

    async def create_output(self, prompt: str = "a cat", **more: Any) -> str:
        """Complete a job; return the id of its output."""
        job = await run(self.api, self.user, self.worker, self.effect_id, input_payload={"prompt": prompt}, **more)
        return str(job["outputs"][0]["file_id"])

    async def batch(self, label: str, *prompts: str) -> list[str]:
        """Complete a batch; return its outputs in order."""
        items = [{"input_payload": {"prompt": prompt}, "label": prompt} for prompt in prompts]
        batch = await self.user.post("/api/batches", {"effect_id": self.effect_id, "label": label, "items": items})
        for _ in prompts:
            await complete(self.api, self.worker, await lease(self.worker))
        page = await self.user.get("/api/gallery", params={"batch": batch["id"], "limit": 200})
        return [item["id"] for item in sorted(page["items"], key=lambda item: item["item_no"])]

    async def create_outputs(self, *more: tuple[str, bytes], prompt: str = "a cat", **fields: Any) -> list[str]:
        """Complete a job with an image and further outputs; return their ids in order."""
        job = await submit(self.user, self.effect_id, input_payload={"prompt": prompt}, **fields)
        await complete(self.api, self.worker, await lease(self.worker), more=more)
        return [output["file_id"] for output in (await self.user.get(f"/api/ai-jobs/{job['id']}"))["outputs"]]

    async def objects_of(self, job_id: str) -> list[str]:
        """Return the stored files of a job without posters."""
        assert self.user.user is not None
        folder = job_folder(self.user.user.tenant_id, job_id)
        paths = [stored.path async for stored in self.api.engine.objects.list(folder)]
        return [path for path in paths if source_path(path) == path]

    async def items(self, **query: Any) -> list[Any]:
        found: list[Any] = (await self.user.get("/api/gallery", params=query))["items"]
        return found

    async def ids(self, **query: Any) -> list[str]:
        return [item["id"] for item in await self.items(**query)]

    async def mark(self, *ids: str, **marks: Any) -> Any:
        return await self.user.post("/api/gallery/marks", {"ids": ids, **marks})

    async def collection(self, name: str = "best") -> str:
        return str((await self.user.post("/api/collections", {"name": name}))["id"])

    async def zip(self, *ids: str) -> zipfile.ZipFile:
        url = (await self.user.post("/api/gallery/zip", {"ids": ids}))["url"]
        answer = await self.user.call("GET", url)
        assert answer.headers["content-type"] == "application/zip"
        assert re.search(r'filename="outputs-\d{4}-\d\d-\d\d-\d{4}\.zip"', answer.headers["content-disposition"])
        return zipfile.ZipFile(io.BytesIO(answer.content))

    async def advance(self, **by: float) -> None:
        await self.api.clock.set(self.api.clock.now + timedelta(**by))


@pytest.fixture
async def scenario(
    backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path
) -> AsyncIterator[Scenario]:
    async with open_api(backend, tmp_path, storage_url=storage_url) as api:
        await api.stop_loops()
        user = await api.user(tokens=1000)
        effect_id = await api.effect()
        yield Scenario(api, user, await api.worker(), effect_id)


class TestListing:
    async def test_output_shows_its_job_batch_and_workflow(self, scenario: Scenario) -> None:
        [first, _] = await scenario.batch("Animals", "a cat", "a dog")
        item = next(entry for entry in await scenario.items() if entry["id"] == first)
        job = await scenario.user.get(f"/api/ai-jobs/{item['job_id']}")
        assert [item["id"]] == [output["file_id"] for output in job["outputs"]]
        # every query returns the same prompt
        assert job["prompt"] == item["prompt"]
        assert item | {"url": ""} == {
            "id": first,
            "job_id": job["id"],
            "batch_id": job["batch_id"],
            "batch_label": "Animals",
            "item_no": 0,
            "number": 1,
            "url": "",
            "filename": "a cat-001.png",
            "mime_type": "image/png",
            "size": len(png("blue")),
            "width": 8,
            "height": 8,
            "seconds": None,
            "poster_url": job["outputs"][0]["poster_url"],
            "preview_url": None,
            "workflow_slug": "clip",
            "has_graph": False,
            "workflow_name": "clip",
            "prompt": "a cat",
            "label": "a cat",
            "seed": None,
            "created_at": item["created_at"],
            "starred": False,
            "rejected": False,
            "note": None,
            "collections": [],
        }
        assert (await scenario.user.http.get(item["url"])).content == png("blue")

    async def test_long_values_are_left_out_of_lists(self, scenario: Scenario) -> None:
        await scenario.api.allow_long_prompts()
        # a quotation mark is stored as two characters
        await scenario.create_output('"' * 45_000)
        await scenario.create_output("a cow")
        assert [item["prompt"] for item in await scenario.items()] == ["a cow", None]

    async def test_cursor_is_stable_in_both_directions_and_after_a_deletion(self, scenario: Scenario) -> None:
        created = []
        for n in range(5):
            created.append(await scenario.create_output(f"cat {n}"))
            # two outputs are created at the same moment
            await scenario.advance(seconds=1 if n != 2 else 0)
        for sort in ("oldest", "newest"):
            whole = await scenario.ids(sort=sort)
            page = await scenario.user.get("/api/gallery", params={"sort": sort, "limit": 2})
            seen = [item["id"] for item in page["items"]]
            while page["next_cursor"] is not None:
                params = {"sort": sort, "limit": 2, "cursor": page["next_cursor"]}
                page = await scenario.user.get("/api/gallery", params=params)
                assert page["total"] == 5
                seen += [item["id"] for item in page["items"]]
            assert seen == whole
            assert sorted(seen) == sorted(created)
        assert await scenario.ids(sort="newest") == (await scenario.ids(sort="oldest"))[::-1]
        page = await scenario.user.get("/api/gallery", params={"limit": 2})
        whole = await scenario.ids()
        await scenario.user.post("/api/gallery/delete", {"ids": [whole[1]]})
        assert await scenario.ids(cursor=page["next_cursor"]) == whole[2:]

    async def test_invalid_cursor_is_refused(self, scenario: Scenario) -> None:
        for cursor in ("x", "1", "12-", "9" * 60 + "-a"):
            problem = problem_of(await scenario.user.call("GET", "/api/gallery", params={"cursor": cursor}), 422)
            assert problem["errors"].keys() == {"cursor"}

    async def test_search_covers_prompt_label_note_batch_and_workflow(self, scenario: Scenario) -> None:
        cat = await scenario.create_output("a Cat in the rain", label="first try")
        dog = await scenario.create_output("a dog in the rain")
        [bird] = await scenario.batch("Wings 100%", "a bird")
        await scenario.mark(dog, note="send to Ada")
        searches = {
            "cat": {cat},
            "CAT rain": {cat},
            "rain": {cat, dog},
            "try": {cat},
            "ada": {dog},
            "wings": {bird},
            "100%": {bird},
            "clip": {cat, dog, bird},
            "clip dog": {dog},
            "_": set(),
            "%": {bird},
            "whale": set(),
            '"in the rain"': {cat, dog},
            '"rain the"': set(),
            "rain -cat": {dog},
            "-rain": {bird},
            '-"a dog" clip': {cat, bird},
            "-ada": {cat, bird},
            "-wings": {cat, dog},
        }
        assert {q: set(await scenario.ids(q=q)) for q in searches} == searches
        problem = problem_of(await scenario.user.call("GET", "/api/gallery", params={"q": "a " * 11}), 422)
        assert problem["errors"] == {"q": "Search for at most 10 words."}

    async def test_filters_apply_to_items_and_counts(self, scenario: Scenario) -> None:
        single, text = await scenario.create_outputs(("txt", b"text"), prompt="one")
        batched = await scenario.batch("Two", "two", "three")
        everything = {single, text, *batched}
        batch_id = next(item["batch_id"] for item in await scenario.items() if item["id"] == batched[0])
        await scenario.mark(single, starred=True)
        await scenario.mark(batched[0], rejected=True)
        collection = await scenario.collection()
        await scenario.mark(single, batched[1], add_to=collection)
        expected: list[tuple[dict[str, str], set[str]]] = [
            ({}, everything),
            ({"workflow": "clip"}, everything),
            ({"workflow": "other"}, set()),
            ({"batch": batch_id}, set(batched)),
            ({"kind": "image"}, {single, *batched}),
            ({"kind": "text"}, {text}),
            ({"kind": "video"}, set()),
            ({"mark": "starred"}, {single}),
            ({"mark": "rejected"}, {batched[0]}),
            ({"mark": "unmarked"}, {text, batched[1]}),
            ({"collection": collection}, {single, batched[1]}),
            ({"collection": collection, "kind": "image", "mark": "starred"}, {single}),
        ]
        for query, ids in expected:
            page = await scenario.user.get("/api/gallery", params=query)
            assert ({entry["id"] for entry in page["items"]}, page["total"]) == (ids, len(ids)), query
            days = (await scenario.user.get("/api/gallery/days", params=query))["days"]
            assert sum(day["count"] for day in days) == len(ids)

    async def test_every_output_of_a_job_is_an_item_with_its_own_marks(self, scenario: Scenario) -> None:
        files = [("png", png("red")), ("png", png("green")), ("txt", b"words"), ("json", b"{}")]
        ids = await scenario.create_outputs(*files, prompt="one", label="cat")
        items = await scenario.items(sort="oldest")
        assert [(item["id"], item["number"], item["filename"], item["mime_type"]) for item in items] == [
            (ids[0], 1, "cat.png", "image/png"),
            (ids[1], 2, "cat-2.png", "image/png"),
            (ids[2], 3, "cat-3.png", "image/png"),
            (ids[3], 4, "cat-4.txt", "text/plain"),
            (ids[4], 5, "cat-5.json", "application/json"),
        ]
        assert len({item["job_id"] for item in items}) == 1
        assert [(await scenario.user.http.get(item["url"])).content for item in items] == [
            png("blue"),
            *(data for _, data in files),
        ]
        # images have posters and sizes for the layout, and every output has the prompt of its job
        assert [item["width"] for item in items] == [8, 8, 8, None, None]
        assert [item["poster_url"] is not None for item in items] == [True, True, True, False, False]
        assert {item["prompt"] for item in items} == {"one"}
        assert await scenario.ids() == ids[::-1]
        await scenario.mark(ids[1], starred=True)
        await scenario.mark(ids[2], rejected=True)
        await scenario.mark(ids[3], note="mine")
        marked = [(item["starred"], item["rejected"], item["note"]) for item in await scenario.items(sort="oldest")]
        assert marked == [
            (False, False, None),
            (True, False, None),
            (False, True, None),
            (False, False, "mine"),
            (False, False, None),
        ]

    async def test_days_follow_the_time_zone(self, scenario: Scenario) -> None:
        await scenario.api.clock.set(datetime(2026, 3, 1, 23, 30, tzinfo=UTC))
        late = await scenario.create_output()
        await scenario.api.clock.set(datetime(2026, 3, 2, 12, 0, tzinfo=UTC))
        noon = await scenario.create_output()

        async def days(**query: str) -> list[tuple[str, int]]:
            found = (await scenario.user.get("/api/gallery/days", params=query))["days"]
            return [(day["day"], day["count"]) for day in found]

        assert await days() == [("2026-03-02", 1), ("2026-03-01", 1)]
        assert await days(tz="Europe/Vienna") == [("2026-03-02", 2)]
        # an offset of 5:45 hours
        assert await days(tz="Asia/Kathmandu") == [("2026-03-02", 2)]
        assert await scenario.ids(**{"from": "2026-03-02"}) == [noon]
        assert await scenario.ids(to="2026-03-01") == [late]
        assert await scenario.ids(**{"from": "2026-03-02", "to": "2026-03-02", "tz": "Europe/Vienna"}) == [noon, late]
        for zone in ("Nowhere/City", "../etc/passwd", "Europe"):
            problem = problem_of(await scenario.user.call("GET", "/api/gallery/days", params={"tz": zone}), 422)
            assert problem["errors"].keys() == {"tz"}
        problem_of(await scenario.user.call("GET", "/api/gallery", params={"to": "9999-12-31"}), 422)

    async def test_outputs_being_removed_are_hidden(self, scenario: Scenario) -> None:
        remaining, removed = await scenario.create_output("remaining"), await scenario.create_output("removed")
        collection = await scenario.collection()
        await scenario.mark(remaining, removed, add_to=collection)
        shard = scenario.api.engine.databases.shards["main"]
        await execute(shard, "UPDATE files SET removing_at = relay_now(0) WHERE id = :id", id=removed)
        page = await scenario.user.get("/api/gallery")
        assert ([item["id"] for item in page["items"]], page["total"]) == ([remaining], 1)
        assert (await scenario.mark(removed, starred=True))["missing"] == [removed]
        [found] = (await scenario.user.get("/api/collections"))["items"]
        assert (found["count"], found["cover"]["id"]) == (1, remaining)


class TestMarks:
    async def test_star_and_rejection_are_exclusive(self, scenario: Scenario) -> None:
        one = await scenario.create_output()

        async def marks(**change: bool) -> tuple[bool, bool]:
            await scenario.mark(one, **change)
            [item] = await scenario.items()
            return item["starred"], item["rejected"]

        assert await marks(starred=True) == (True, False)
        assert await marks(rejected=False) == (True, False)
        assert await marks(rejected=True) == (False, True)
        assert await marks(starred=False) == (False, True)
        assert await marks(starred=False, rejected=False) == (False, False)
        body = {"ids": [one], "starred": True, "rejected": True}
        problem_of(await scenario.user.call("POST", "/api/gallery/marks", body), 422)

    async def test_note_is_kept_until_emptied(self, scenario: Scenario) -> None:
        one = await scenario.create_output()
        for change, note in (({"note": "warmer"}, "warmer"), ({"starred": True}, "warmer"), ({"note": ""}, None)):
            await scenario.mark(one, **change)
            [item] = await scenario.items()
            assert item["note"] == note

    async def test_bulk_marking_names_missing_outputs(self, scenario: Scenario) -> None:
        created = [await scenario.create_output() for _ in range(3)]
        assert await scenario.mark(*created, "nothing", starred=True) == {"changed": 3, "missing": ["nothing"]}
        assert sorted(await scenario.ids(mark="starred")) == sorted(created)


class TestCollections:
    async def test_collection_cover_is_the_newest_visible_output(self, scenario: Scenario) -> None:
        shown = await scenario.create_output("shown")
        await scenario.advance(seconds=1)
        _, text = await scenario.create_outputs(("txt", b"words"), prompt="other")
        best = await scenario.collection("best")
        await scenario.mark(text, add_to=best)
        # without a visible output, the newest one is the cover
        assert (await scenario.user.get("/api/collections"))["items"][0]["cover"]["id"] == text
        await scenario.mark(shown, add_to=best)
        [found] = (await scenario.user.get("/api/collections"))["items"]
        assert (found["count"], found["cover"]["id"]) == (2, shown)
        assert found["cover"]["poster_url"] is not None

    async def test_collection_shows_its_count_and_newest_output(self, scenario: Scenario) -> None:
        old = await scenario.create_output("old")
        await scenario.advance(seconds=1)
        new = await scenario.create_output("new")
        best, none = await scenario.collection("best"), await scenario.collection("Another")
        await scenario.mark(old, new, add_to=best)
        # adding an output again changes nothing
        await scenario.mark(new, add_to=best)
        another, found = (await scenario.user.get("/api/collections"))["items"]
        assert (another["id"], another["count"], another["cover"]) == (none, 0, None)
        assert (found["name"], found["count"], found["cover"]["id"]) == ("best", 2, new)
        assert (await scenario.user.http.get(found["cover"]["url"])).content == png("blue")
        assert {item["id"]: item["collections"] for item in await scenario.items()} == {old: [best], new: [best]}
        await scenario.mark(new, remove_from=best, add_to=none)
        assert await scenario.ids(collection=best) == [old]
        assert await scenario.ids(collection=none) == [new]

    async def test_names_are_unique_and_can_be_changed(self, scenario: Scenario) -> None:
        best = await scenario.collection("best")
        problem_of(await scenario.user.call("POST", "/api/collections", {"name": "best"}), 409)
        other = await scenario.collection("other")
        problem_of(await scenario.user.call("PATCH", f"/api/collections/{other}", {"name": "best"}), 409)
        renamed = await scenario.user.call("PATCH", f"/api/collections/{best}", {"name": "worst"})
        assert renamed.json()["data"]["name"] == "worst"

    async def test_deleting_a_collection_keeps_its_outputs(self, scenario: Scenario) -> None:
        one, best = await scenario.create_output(), await scenario.collection()
        await scenario.mark(one, add_to=best)
        assert (await scenario.user.call("DELETE", f"/api/collections/{best}")).status_code == 200
        [item] = await scenario.items()
        assert item["collections"] == []
        problem_of(await scenario.user.call("DELETE", f"/api/collections/{best}"), 404)
        problem_of(await scenario.user.call("POST", "/api/gallery/marks", {"ids": [one], "add_to": best}), 404)


def names_in_zip(*paths: str) -> list[str]:
    """Return the names in a zip of outputs that are given as `name` or `folder/name`."""
    split_paths = [path.rpartition("/") for path in paths]
    return archive_names(split_paths, lambda parts: parts[2], lambda parts: parts[0] or None)


class TestNames:
    def test_file_and_folder_names_differ(self) -> None:
        assert names_in_zip("cover.png", "Cover.png/a.png") == ["cover (2).png", "Cover.png/a.png"]
        assert names_in_zip("cover.png/a.png", "cover.png", "cover (2).png") == [
            "cover.png/a.png",
            "cover (2).png",
            "cover (2) (2).png",
        ]

    def test_unique_names_are_found_in_linear_time(self) -> None:
        def steps(n: int) -> int:
            calls = 0

            def count(*_of_a_call: object) -> None:
                nonlocal calls
                calls += 1

            sys.setprofile(count)
            try:
                assert len(set(names_in_zip(*["same.png"] * n))) == n
            finally:
                sys.setprofile(None)
            return calls

        assert steps(400) < 3 * steps(200)


class TestZips:
    async def test_zip_contains_every_file_under_a_unique_name(self, scenario: Scenario) -> None:
        batched = await scenario.batch("../Boats: 1/2", "a red boat", "con")
        single, text = await scenario.create_outputs(("txt", b"text " * 1000), label="<b>same</b>")
        twin = await scenario.create_output("x", label="<B>same</b>")
        zipped = await scenario.zip(*batched, single, twin, text)
        assert zipped.testzip() is None
        assert sorted(zipped.namelist()) == [
            "B-same-b (2).png",
            "Boats- 1-2/a red boat-001.png",
            "Boats- 1-2/con_-002.png",
            "b-same-b-2.txt",
            "b-same-b.png",
        ]
        # media does not compress, so nothing is deflated
        assert {member.compress_type for member in zipped.infolist()} == {zipfile.ZIP_STORED}
        assert zipped.read("Boats- 1-2/a red boat-001.png") == png("blue")
        assert zipped.read("b-same-b-2.txt") == b"text " * 1000

    async def test_zip_lists_missing_files(self, scenario: Scenario) -> None:
        remaining, lost, deleted = [
            await scenario.create_output(label=name) for name in ("remaining", "lost", "deleted")
        ]
        [batched] = await scenario.batch("missing.txt", "a")
        url = (await scenario.user.post("/api/gallery/zip", {"ids": [remaining, lost, deleted, batched]}))["url"]
        for item in await scenario.items():
            if item["id"] == lost:
                assert scenario.user.user is not None
                folder = job_folder(scenario.user.user.tenant_id, item["job_id"])
                await scenario.api.engine.objects.remove_many(
                    [found.path async for found in scenario.api.engine.objects.list(folder)]
                )
        await scenario.user.post("/api/gallery/delete", {"ids": [deleted]})
        zipped = zipfile.ZipFile(io.BytesIO((await scenario.user.call("GET", url)).content))
        assert zipped.testzip() is None
        # a folder keeps its own name
        assert zipped.namelist() == ["remaining.png", "missing.txt/a-001.png", "missing (2).txt"]
        lines = zipped.read("missing (2).txt").decode().splitlines()
        assert lines == [f"{deleted}: it was deleted", "lost.png: the file is missing in storage"]

    async def test_zip_is_streamed_in_small_pieces(self, scenario: Scenario) -> None:
        _, large = await scenario.create_outputs(("bin", bytes(5_000_000)))
        assert scenario.user.user is not None
        zips = scenario.api.engine.gallery.zips
        pieces = await zips.open(scenario.user.user, await zips.create(scenario.user.user, [large]))
        sizes = [len(piece) async for piece in pieces]
        assert sum(sizes) > 5_000_000
        # S3 uses parts of one mebibyte
        assert max(sizes) <= 1024 * 1024 + 1000

    async def test_zip_url_is_private_and_expires(self, scenario: Scenario) -> None:
        one = await scenario.create_output()
        url = (await scenario.user.post("/api/gallery/zip", {"ids": [one]}))["url"]
        stranger = await scenario.api.user("eve@example.com")
        problem_of(await scenario.api.anonymous.call("GET", url), 401)
        problem_of(await stranger.call("GET", url), 404)
        assert (await scenario.user.call("GET", url)).status_code == 200
        await scenario.advance(minutes=15)
        problem_of(await scenario.user.call("GET", url), 404)
        # the next zip replaces the expired one
        await scenario.user.post("/api/gallery/zip", {"ids": [one]})
        [remaining] = await execute(scenario.api.engine.databases.shards["main"], "SELECT count(*) AS n FROM zips")
        assert remaining.n == 1

    async def test_empty_or_oversized_zip_request_is_refused(self, scenario: Scenario) -> None:
        problem_of(await scenario.user.call("POST", "/api/gallery/zip", {"ids": ["x"] * 2001}), 422)
        problem_of(await scenario.user.call("POST", "/api/gallery/zip", {"ids": []}), 422)
        problem_of(await scenario.user.call("POST", "/api/gallery/zip", {"ids": ["nothing"]}), 404)


class TestDeleting:
    async def test_job_is_deleted_with_its_last_output(self, scenario: Scenario) -> None:
        first, second = await scenario.create_outputs(("txt", b"text"), label="removed")
        remaining = await scenario.create_output("remaining")
        best = await scenario.collection()
        await scenario.mark(first, second, remaining, add_to=best)
        [job_id] = {item["job_id"] for item in await scenario.items() if item["id"] == first}
        answer = await scenario.user.call("POST", "/api/gallery/delete", {"ids": [second, first, "nothing"]})
        done = answer.json()
        assert done["data"] == {
            "deleted": sorted([first, second]),
            "missing": ["nothing"],
            "jobs": 1,
            "files": 0,
            "not_deleted": [],
            "refused": [],
        }
        assert done["message"] == "Deleted 2 outputs, with 1 job."
        assert await scenario.ids() == [remaining]
        assert await scenario.ids(collection=best) == [remaining]
        problem_of(await scenario.user.call("GET", f"/api/ai-jobs/{job_id}"), 404)
        assert await scenario.objects_of(job_id) == []
        shard = scenario.api.engine.databases.shards["main"]
        [row] = await execute(shard, "SELECT count(*) AS n FROM files WHERE id IN (:a, :b)", a=first, b=second)
        assert row.n == 0

    async def test_deleting_an_output_leaves_the_others_of_its_job(self, scenario: Scenario) -> None:
        ids = await scenario.create_outputs(("png", png("red")), ("png", png("green")))
        best = await scenario.collection()
        await scenario.mark(*ids, add_to=best)
        [job_id] = {item["job_id"] for item in await scenario.items()}
        answer = (await scenario.user.call("POST", "/api/gallery/delete", {"ids": [ids[1]]})).json()
        assert (answer["data"]["deleted"], answer["data"]["jobs"]) == ([ids[1]], 0)
        assert answer["message"] == "Deleted 1 output."
        assert await scenario.ids(collection=best, sort="oldest") == [ids[0], ids[2]]
        job = await scenario.user.get(f"/api/ai-jobs/{job_id}")
        assert [(output["file_id"], output["number"]) for output in job["outputs"]] == [(ids[0], 1), (ids[2], 3)]
        # only the object of the deleted output is gone
        assert len(await scenario.objects_of(job_id)) == 2

    async def test_next_output_becomes_the_cover_of_a_job(self, scenario: Scenario) -> None:
        first, second, third = await scenario.create_outputs(("png", png("red")), ("png", png("green")))
        other = await scenario.create_output()
        await scenario.user.post("/api/gallery/delete", {"ids": [first]})
        listed = {job["output_count"]: job["outputs"] for job in (await scenario.user.get("/api/ai-jobs"))["items"]}
        assert {count: [output["file_id"] for output in outputs] for count, outputs in listed.items()} == {
            2: [second],
            1: [other],
        }
        assert listed[2][0]["number"] == 2
        await scenario.user.post("/api/gallery/delete", {"ids": [second, third]})
        assert await scenario.ids() == [other]

    async def test_output_in_use_does_not_keep_the_outputs_of_other_jobs(self, scenario: Scenario) -> None:
        used, _ = await scenario.create_outputs(("png", png("red")))
        unused, kept = await scenario.create_outputs(("png", png("green")))
        await submit(scenario.user, scenario.effect_id, input_file_id=used)
        done = await scenario.user.post("/api/gallery/delete", {"ids": [used, unused]})
        assert (done["deleted"], done["jobs"], len(done["refused"])) == ([unused], 0, 1)
        assert kept in await scenario.ids()

    async def test_output_in_use_by_a_job_is_not_deleted(self, scenario: Scenario) -> None:
        one = await scenario.create_output()
        await submit(scenario.user, scenario.effect_id, input_file_id=one)
        done = await scenario.user.post("/api/gallery/delete", {"ids": [one]})
        assert (done["deleted"], done["jobs"]) == ([], 0)
        [refused] = done["refused"]
        assert "unfinished job" in refused["detail"]
        assert await scenario.ids() == [one]

    async def test_output_of_a_video_is_deleted_with_its_job(self, scenario: Scenario) -> None:
        one = await scenario.create_output()
        await scenario.user.post("/api/videos", {"original_file_id": one})
        [item] = await scenario.items()
        assert (await scenario.user.call("DELETE", f"/api/ai-jobs/{item['job_id']}")).status_code == 200
        assert await scenario.ids() == []


async def test_other_tenants_outputs_are_not_found(scenario: Scenario) -> None:
    one, best = await scenario.create_output(label="secret"), await scenario.collection("mine")
    await scenario.mark(one, note="mine", add_to=best)
    before = await scenario.items()
    eve = await scenario.api.user("eve@example.com")
    own = (await eve.post("/api/collections", {"name": "mine"}))["id"]
    for query in ({}, {"q": "secret"}, {"collection": best}):
        page = await eve.get("/api/gallery", params=query)
        assert (page["items"], page["total"]) == ([], 0)
        assert (await eve.get("/api/gallery/days", params=query))["days"] == []
    for marks in ({"starred": True}, {"note": "eve"}, {"add_to": own}):
        assert (await eve.post("/api/gallery/marks", {"ids": [one], **marks}))["missing"] == [one]
    for marks in ({"add_to": best}, {"remove_from": best}):
        problem_of(await eve.call("POST", "/api/gallery/marks", {"ids": [one], **marks}), 404)
    problem_of(await eve.call("POST", "/api/gallery/zip", {"ids": [one]}), 404)
    assert (await eve.post("/api/gallery/delete", {"ids": [one]}))["missing"] == [one]
    problem_of(await eve.call("PATCH", f"/api/collections/{best}", {"name": "eve"}), 404)
    problem_of(await eve.call("DELETE", f"/api/collections/{best}"), 404)
    [own_collection] = (await eve.get("/api/collections"))["items"]
    assert (own_collection["id"], own_collection["count"]) == (own, 0)
    assert [item | {"url": ""} for item in await scenario.items()] == [item | {"url": ""} for item in before]


async def test_index_groups_outputs_and_items_are_read_by_id(scenario: Scenario) -> None:
    cats = await scenario.batch("cats", "a cat", "two cats")
    dog = await scenario.create_output("a dog")
    index = await scenario.user.get("/api/gallery/index", params={"by": "batch"})
    assert [(group["name"], group["ids"]) for group in index["groups"]] == [("", [dog]), ("cats", cats[::-1])]
    assert index["total"] == 3
    by_prompt = await scenario.user.get("/api/gallery/index", params={"by": "prompt", "sort": "oldest", "q": "cat"})
    assert [(group["key"], group["ids"]) for group in by_prompt["groups"]] == [
        ("a cat", cats[:1]),
        ("two cats", cats[1:]),
    ]
    [today] = (await scenario.user.get("/api/gallery/index"))["groups"]
    assert len(today["ids"]) == len(today["ratios"]) == 3
    found = await scenario.user.get("/api/gallery/items", params={"ids": f"{cats[1]},{new_id()},{dog}"})
    assert [item["id"] for item in found["items"]] == [cats[1], dog]
