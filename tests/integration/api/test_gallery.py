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
from comfyrelay.domain.ids import job_folder, new_id
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

    async def made(self, prompt: str = "a cat", **more: Any) -> str:
        """Make an output; return its id."""
        job = await run(self.api, self.user, self.worker, self.effect_id, input_payload={"prompt": prompt}, **more)
        return str(job["outputs"][0]["file_id"])

    async def batch(self, label: str, *prompts: str) -> list[str]:
        """Make a batch; return its outputs in order."""
        items = [{"input_payload": {"prompt": prompt}, "label": prompt} for prompt in prompts]
        batch = await self.user.post("/api/batches", {"effect_id": self.effect_id, "label": label, "items": items})
        for _ in prompts:
            await complete(self.api, self.worker, await lease(self.worker))
        page = await self.user.get("/api/gallery", params={"batch": batch["id"], "limit": 200})
        return [each["id"] for each in sorted(page["items"], key=lambda each: each["item_no"])]

    async def second(self, first: str, data: bytes, mime_type: str = "text/plain") -> str:
        """Add another output to the same job."""
        [item] = [each for each in await self.items() if each["id"] == first]
        assert self.user.user is not None
        tenant_id, id_ = self.user.user.tenant_id, new_id()
        path = f"{job_folder(tenant_id, item['job_id'])}/output-{id_}.txt"
        await self.api.engine.objects.put(path, data)
        shard = self.api.engine.databases.shards["main"]
        await execute(
            shard,
            "INSERT INTO files (id, tenant_id, user_id, disk, path, mime_type, size, created_at, used_at) "
            "SELECT :id, tenant_id, user_id, disk, :path, :mime, :size, created_at, used_at FROM files WHERE id = :of",
            id=id_,
            path=path,
            mime=mime_type,
            size=len(data),
            of=first,
        )
        names = "tenant_id, job_id, batch_id, item_no, workflow_id, label, texts, created_at"
        await execute(
            shard,
            f"INSERT INTO outputs (id, number, kind, {names}) "
            f"SELECT :id, 2, 'text', {names} FROM outputs WHERE id = :of",
            id=id_,
            of=first,
        )
        return id_

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

    async def later(self, **by: float) -> None:
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


class TestLookingThrough:
    async def test_output_says_where_it_comes_from(self, scenario: Scenario) -> None:
        [first, _] = await scenario.batch("Animals", "a cat", "a dog")
        item = next(each for each in await scenario.items() if each["id"] == first)
        job = await scenario.user.get(f"/api/ai-jobs/{item['job_id']}")
        assert [item["id"]] == [each["file_id"] for each in job["outputs"]]
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

    async def test_pages_follow_each_other_in_both_directions_also_when_their_last_is_deleted(
        self, scenario: Scenario
    ) -> None:
        made = []
        for n in range(5):
            made.append(await scenario.made(f"cat {n}"))
            # two of them at the same moment
            await scenario.later(seconds=1 if n != 2 else 0)
        for sort in ("oldest", "newest"):
            whole = await scenario.ids(sort=sort)
            page = await scenario.user.get("/api/gallery", params={"sort": sort, "limit": 2})
            seen = [each["id"] for each in page["items"]]
            while page["next_cursor"] is not None:
                params = {"sort": sort, "limit": 2, "cursor": page["next_cursor"]}
                page = await scenario.user.get("/api/gallery", params=params)
                assert page["total"] == 5
                seen += [each["id"] for each in page["items"]]
            assert seen == whole
            assert sorted(seen) == sorted(made)
        assert await scenario.ids(sort="newest") == (await scenario.ids(sort="oldest"))[::-1]
        page = await scenario.user.get("/api/gallery", params={"limit": 2})
        whole = await scenario.ids()
        await scenario.user.post("/api/gallery/delete", {"ids": [whole[1]]})
        assert await scenario.ids(cursor=page["next_cursor"]) == whole[2:]

    async def test_cursor_of_something_else_is_refused(self, scenario: Scenario) -> None:
        for cursor in ("x", "1", "12-", "9" * 60 + "-a"):
            problem = problem_of(await scenario.user.call("GET", "/api/gallery", params={"cursor": cursor}), 422)
            assert problem["errors"].keys() == {"cursor"}

    async def test_every_word_is_looked_for_in_prompt_label_note_batch_and_workflow(self, scenario: Scenario) -> None:
        cat = await scenario.made("a Cat in the rain", label="first try")
        dog = await scenario.made("a dog in the rain")
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
        }
        assert {q: set(await scenario.ids(q=q)) for q in searches} == searches
        problem = problem_of(await scenario.user.call("GET", "/api/gallery", params={"q": "a " * 11}), 422)
        assert problem["errors"] == {"q": "Search for at most 10 words."}

    async def test_filters_narrow_what_is_listed_and_counted(self, scenario: Scenario) -> None:
        single = await scenario.made("one")
        batched = await scenario.batch("Two", "two", "three")
        text = await scenario.second(single, b"said")
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
            assert ({each["id"] for each in page["items"]}, page["total"]) == (ids, len(ids)), query
            days = (await scenario.user.get("/api/gallery/days", params=query))["days"]
            assert sum(day["count"] for day in days) == len(ids)

    async def test_several_outputs_of_a_job_are_items_of_their_own(self, scenario: Scenario) -> None:
        first = await scenario.made("one")
        second = await scenario.second(first, b"said")
        items = {item["id"]: item for item in await scenario.items()}
        assert {id_: each["number"] for id_, each in items.items()} == {first: 1, second: 2}
        assert items[first]["job_id"] == items[second]["job_id"]
        await scenario.mark(second, starred=True)
        assert {item["id"]: item["starred"] for item in await scenario.items()} == {first: False, second: True}

    async def test_days_follow_the_time_zone(self, scenario: Scenario) -> None:
        await scenario.api.clock.set(datetime(2026, 3, 1, 23, 30, tzinfo=UTC))
        late = await scenario.made()
        await scenario.api.clock.set(datetime(2026, 3, 2, 12, 0, tzinfo=UTC))
        noon = await scenario.made()

        async def days(**query: str) -> list[tuple[str, int]]:
            found = (await scenario.user.get("/api/gallery/days", params=query))["days"]
            return [(each["day"], each["count"]) for each in found]

        assert await days() == [("2026-03-02", 1), ("2026-03-01", 1)]
        assert await days(tz="Europe/Vienna") == [("2026-03-02", 2)]
        # half past eleven is the next day where clocks are 45 minutes ahead
        assert await days(tz="Asia/Kathmandu") == [("2026-03-02", 2)]
        assert await scenario.ids(**{"from": "2026-03-02"}) == [noon]
        assert await scenario.ids(to="2026-03-01") == [late]
        assert await scenario.ids(**{"from": "2026-03-02", "to": "2026-03-02", "tz": "Europe/Vienna"}) == [noon, late]
        for zone in ("Nowhere/City", "../etc/passwd", "Europe"):
            problem = problem_of(await scenario.user.call("GET", "/api/gallery/days", params={"tz": zone}), 422)
            assert problem["errors"].keys() == {"tz"}
        problem_of(await scenario.user.call("GET", "/api/gallery", params={"to": "9999-12-31"}), 422)

    async def test_outputs_being_removed_are_hidden(self, scenario: Scenario) -> None:
        kept, going = await scenario.made("kept"), await scenario.made("going")
        collection = await scenario.collection()
        await scenario.mark(kept, going, add_to=collection)
        shard = scenario.api.engine.databases.shards["main"]
        await execute(shard, "UPDATE files SET removing_at = relay_now(0) WHERE id = :id", id=going)
        page = await scenario.user.get("/api/gallery")
        assert ([each["id"] for each in page["items"]], page["total"]) == ([kept], 1)
        assert (await scenario.mark(going, starred=True))["missing"] == [going]
        [found] = (await scenario.user.get("/api/collections"))["items"]
        assert (found["count"], found["cover"]["id"]) == (1, kept)


class TestMarks:
    async def test_star_and_a_rejection_take_each_other_s_place(self, scenario: Scenario) -> None:
        one = await scenario.made()

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

    async def test_note_stays_until_it_is_emptied(self, scenario: Scenario) -> None:
        one = await scenario.made()
        for change, note in (({"note": "warmer"}, "warmer"), ({"starred": True}, "warmer"), ({"note": ""}, None)):
            await scenario.mark(one, **change)
            [item] = await scenario.items()
            assert item["note"] == note

    async def test_bulk_marking_names_missing_outputs(self, scenario: Scenario) -> None:
        made = [await scenario.made() for _ in range(3)]
        assert await scenario.mark(*made, "nothing", starred=True) == {"changed": 3, "missing": ["nothing"]}
        assert sorted(await scenario.ids(mark="starred")) == sorted(made)


class TestCollections:
    async def test_cover_of_a_collection_is_the_newest_that_can_be_seen(self, scenario: Scenario) -> None:
        shown = await scenario.made("shown")
        await scenario.later(seconds=1)
        text = await scenario.second(await scenario.made("other"), b"words")
        best = await scenario.collection("best")
        await scenario.mark(text, add_to=best)
        # the newest of the hidden ones
        assert (await scenario.user.get("/api/collections"))["items"][0]["cover"]["id"] == text
        await scenario.mark(shown, add_to=best)
        [found] = (await scenario.user.get("/api/collections"))["items"]
        assert (found["count"], found["cover"]["id"]) == (2, shown)
        assert found["cover"]["poster_url"] is not None

    async def test_collection_counts_what_is_in_it_and_shows_the_newest(self, scenario: Scenario) -> None:
        old = await scenario.made("old")
        await scenario.later(seconds=1)
        new = await scenario.made("new")
        best, none = await scenario.collection("best"), await scenario.collection("Another")
        await scenario.mark(old, new, add_to=best)
        # a repetition changes nothing
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

    async def test_deleting_a_collection_leaves_what_was_in_it(self, scenario: Scenario) -> None:
        one, best = await scenario.made(), await scenario.collection()
        await scenario.mark(one, add_to=best)
        assert (await scenario.user.call("DELETE", f"/api/collections/{best}")).status_code == 200
        [item] = await scenario.items()
        assert item["collections"] == []
        problem_of(await scenario.user.call("DELETE", f"/api/collections/{best}"), 404)
        problem_of(await scenario.user.call("POST", "/api/gallery/marks", {"ids": [one], "add_to": best}), 404)


def named(*paths: str) -> list[str]:
    """Return the names of these outputs in a zip, each a name or `folder/name`."""
    asked = [path.rpartition("/") for path in paths]
    return archive_names(asked, lambda each: each[2], lambda each: each[0] or None)


class TestNames:
    def test_no_file_has_the_name_of_a_folder(self) -> None:
        assert named("cover.png", "Cover.png/a.png") == ["cover (2).png", "Cover.png/a.png"]
        assert named("cover.png/a.png", "cover.png", "cover (2).png") == [
            "cover.png/a.png",
            "cover (2).png",
            "cover (2) (2).png",
        ]

    def test_each_name_is_found_in_a_step_or_two_however_many_want_it(self) -> None:
        def steps(n: int) -> int:
            taken = 0

            def count(*_of_a_call: object) -> None:
                nonlocal taken
                taken += 1

            sys.setprofile(count)
            try:
                assert len(set(named(*["same.png"] * n))) == n
            finally:
                sys.setprofile(None)
            return taken

        assert steps(400) < 3 * steps(200)


class TestZips:
    async def test_zip_holds_every_file_as_it_is_under_a_name_of_its_own(self, scenario: Scenario) -> None:
        batched = await scenario.batch("../Boats: 1/2", "a red boat", "con")
        single = await scenario.made("x", label="<b>same</b>")
        twin = await scenario.made("x", label="<B>same</b>")
        text = await scenario.second(single, b"said " * 1000)
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
        assert {each.compress_type for each in zipped.infolist()} == {zipfile.ZIP_STORED}
        assert zipped.read("Boats- 1-2/a red boat-001.png") == png("blue")
        assert zipped.read("b-same-b-2.txt") == b"said " * 1000

    async def test_zip_lists_missing_files(self, scenario: Scenario) -> None:
        kept, lost, deleted = [await scenario.made(label=name) for name in ("kept", "lost", "deleted")]
        [batched] = await scenario.batch("missing.txt", "a")
        url = (await scenario.user.post("/api/gallery/zip", {"ids": [kept, lost, deleted, batched]}))["url"]
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
        assert zipped.namelist() == ["kept.png", "missing.txt/a-001.png", "missing (2).txt"]
        said = zipped.read("missing (2).txt").decode().splitlines()
        assert said == [f"{deleted}: it was deleted", "lost.png: the file is missing in storage"]

    async def test_no_more_than_a_piece_of_it_is_held(self, scenario: Scenario) -> None:
        first = await scenario.made()
        large = await scenario.second(first, bytes(5_000_000))
        assert scenario.user.user is not None
        zips = scenario.api.engine.gallery.zips
        pieces = await zips.open(scenario.user.user, await zips.create(scenario.user.user, [large]))
        sizes = [len(piece) async for piece in pieces]
        assert sum(sizes) > 5_000_000
        # S3 uses parts of one mebibyte
        assert max(sizes) <= 1024 * 1024 + 1000

    async def test_download_is_for_its_user_and_for_a_while(self, scenario: Scenario) -> None:
        one = await scenario.made()
        url = (await scenario.user.post("/api/gallery/zip", {"ids": [one]}))["url"]
        stranger = await scenario.api.user("eve@example.com")
        problem_of(await scenario.api.anybody.call("GET", url), 401)
        problem_of(await stranger.call("GET", url), 404)
        assert (await scenario.user.call("GET", url)).status_code == 200
        await scenario.later(minutes=15)
        problem_of(await scenario.user.call("GET", url), 404)
        # the next one replaces it
        await scenario.user.post("/api/gallery/zip", {"ids": [one]})
        [kept] = await execute(scenario.api.engine.databases.shards["main"], "SELECT count(*) AS n FROM zips")
        assert kept.n == 1

    async def test_too_many_or_nothing_is_refused(self, scenario: Scenario) -> None:
        problem_of(await scenario.user.call("POST", "/api/gallery/zip", {"ids": ["x"] * 2001}), 422)
        problem_of(await scenario.user.call("POST", "/api/gallery/zip", {"ids": []}), 422)
        problem_of(await scenario.user.call("POST", "/api/gallery/zip", {"ids": ["nothing"]}), 404)


class TestDeleting:
    async def test_outputs_go_with_their_jobs_and_all_that_these_made(self, scenario: Scenario) -> None:
        first, kept = await scenario.made("going", label="going"), await scenario.made("kept")
        second = await scenario.second(first, b"said")
        best = await scenario.collection()
        await scenario.mark(first, second, kept, add_to=best)
        [job_id] = {item["job_id"] for item in await scenario.items() if item["id"] == first}
        answer = await scenario.user.call("POST", "/api/gallery/delete", {"ids": [second, "nothing"]})
        done = answer.json()
        assert done["data"] == {
            "deleted": sorted([first, second]),
            "missing": ["nothing"],
            "jobs": 1,
            "files": 0,
            "left": [],
            "refused": [],
        }
        assert done["message"] == "Deleted 2 outputs, with 1 jobs."
        assert await scenario.ids() == [kept]
        assert await scenario.ids(collection=best) == [kept]
        problem_of(await scenario.user.call("GET", f"/api/ai-jobs/{job_id}"), 404)
        assert scenario.user.user is not None
        folder = job_folder(scenario.user.user.tenant_id, job_id)
        assert [each async for each in scenario.api.engine.objects.list(folder)] == []
        shard = scenario.api.engine.databases.shards["main"]
        [left] = await execute(shard, "SELECT count(*) AS n FROM files WHERE id IN (:a, :b)", a=first, b=second)
        assert left.n == 0

    async def test_output_that_a_job_still_needs_stays_and_says_so(self, scenario: Scenario) -> None:
        one = await scenario.made()
        await submit(scenario.user, scenario.effect_id, input_file_id=one)
        done = await scenario.user.post("/api/gallery/delete", {"ids": [one]})
        assert (done["deleted"], done["jobs"]) == ([], 0)
        [refused] = done["refused"]
        assert "unfinished job" in refused["detail"]
        assert await scenario.ids() == [one]

    async def test_output_used_by_a_video_leaves_with_its_job(self, scenario: Scenario) -> None:
        one = await scenario.made()
        await scenario.user.post("/api/videos", {"original_file_id": one})
        [item] = await scenario.items()
        assert (await scenario.user.call("DELETE", f"/api/ai-jobs/{item['job_id']}")).status_code == 200
        assert await scenario.ids() == []


async def test_other_tenants_outputs_are_not_found(scenario: Scenario) -> None:
    one, best = await scenario.made(label="secret"), await scenario.collection("mine")
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
    [hers] = (await eve.get("/api/collections"))["items"]
    assert (hers["id"], hers["count"]) == (own, 0)
    assert [item | {"url": ""} for item in await scenario.items()] == [each | {"url": ""} for each in before]


async def test_index_has_all_that_fits_by_groups_and_items_are_had_by_their_ids(scenario: Scenario) -> None:
    cats = await scenario.batch("cats", "a cat", "two cats")
    dog = await scenario.made("a dog")
    index = await scenario.user.get("/api/gallery/index", params={"by": "batch"})
    assert [(each["name"], each["ids"]) for each in index["groups"]] == [("", [dog]), ("cats", cats[::-1])]
    assert index["total"] == 3
    by_prompt = await scenario.user.get("/api/gallery/index", params={"by": "prompt", "sort": "oldest", "q": "cat"})
    assert [(each["key"], each["ids"]) for each in by_prompt["groups"]] == [("a cat", cats[:1]), ("two cats", cats[1:])]
    [today] = (await scenario.user.get("/api/gallery/index"))["groups"]
    assert len(today["ids"]) == len(today["ratios"]) == 3
    found = await scenario.user.get("/api/gallery/items", params={"ids": f"{cats[1]},{new_id()},{dog}"})
    assert [each["id"] for each in found["items"]] == [cats[1], dog]
