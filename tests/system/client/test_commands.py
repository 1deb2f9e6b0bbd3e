"""Commands run as processes against a server and print text or JSON with the right exit code."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.http_client import listen
from tests.support import commands
from tests.support.api_calls import complete, fail, lease, lease_of, run
from tests.support.client_site import Site
from tests.support.graphs import invert
from tests.support.webhook_receiver import open_receiver
from tests.support.world import PATIENCE_SECONDS


async def failed(site: Site, error: str = "It broke.") -> Any:
    job = await site.submit()
    await fail(site.api, site.worker, await lease(site.worker), error)
    return job


async def status_of(site: Site, job: Any) -> str:
    return str((await site.client.job(job["id"])).status)


# Lists


async def test_jobs_are_listed_with_status_and_error(site: Site) -> None:
    broken = await failed(site, "No [red]such model\x1b[31m.")
    await site.batch(1, label="boats")
    ran = await site.command("jobs")
    assert (ran.code, ran.err) == (0, "")
    assert broken["id"][-8:] in ran.out
    assert "No [red]such model" in ran.out
    assert "\x1b" not in ran.out
    assert "boats #1" in ran.out


async def test_jobs_can_be_filtered_searched_and_limited(site: Site) -> None:
    broken = await failed(site, "Out of memory.")
    waiting = [await site.submit(label=f"boat {n}") for n in range(3)]
    batch = await site.batch(2)

    async def listed(*words: str) -> list[str]:
        return [load["id"] for load in json.loads((await site.command("jobs", "--json", *words)).out)]

    assert await listed("--status", "failed") == [broken["id"]]
    assert await listed("--search", "OUT OF MEM") == [broken["id"]]
    assert await listed("--search", "boat", "--limit", "2") == [waiting[2]["id"], waiting[1]["id"]]
    assert len(await listed("--batch", batch["id"][-8:])) == 2
    assert await listed("--search", "nothing like that") == []
    # find the columns by the table headings
    assert len(await listed("--search", "LOOK-d")) == 2
    assert await listed("--search", "look-dev", "--status", "failed") == []


async def test_status_filter_accepts_page_and_api_names(site: Site) -> None:
    await run(site.api, site.user, site.worker, site.effect_id)
    broken, waiting = await failed(site), await site.submit()

    async def listed(status: str) -> list[str]:
        return [load["id"] for load in json.loads((await site.command("jobs", "--json", "--status", status)).out)]

    assert await listed("waiting") == await listed("pending") == await listed("queued") == [waiting["id"]]
    assert await listed("done") == await listed("succeeded") == await listed("COMPLETED")
    assert (await listed("failed"), await listed("running")) == ([broken["id"]], [])
    ran = await site.command("jobs", "--status", "busy")
    assert ran.code == 2
    assert "waiting, running, done, failed, canceled or paused" in ran.err


async def test_batches_are_listed_with_their_progress(site: Site) -> None:
    assert (await site.command("batches")).out == "No batches.\n"
    batch, other = await site.batch(3, label="boats"), await site.batch(1)
    await fail(site.api, site.worker, await lease(site.worker), "Too dark.")
    ran = await site.command("batches")
    assert (ran.code, ran.err) == (0, "")
    assert [text in ran.out for text in (batch["id"][-8:], "1 of 3", "boats", "2 queued, 1 failed")] == [True] * 4
    listed = json.loads((await site.command("batches", "--json", "--limit", "1")).out)
    assert [job["id"] for job in listed] == [other["id"]]


async def test_tables_fit_80_columns_and_show_whole_errors(site: Site) -> None:
    error = f"The node needs the model {'sd_xl_base_1.0.safetensors ' * 3}, which no worker has."
    await failed(site, error)
    await site.batch(2, label="Wan 2.2 image to video, first try with the red boat at night, and much more to say")
    progress = {"value": 0.4, "node": "KSampler (high noise)", "step": 8.0, "steps": 20.0}
    await site.worker.post("/api/worker/heartbeat", {**lease_of(await lease(site.worker)), "progress": progress})
    await site.api.engine.outbox.delivery.idle()
    for words in (["jobs"], ["batches"], ["top", "--once"]):
        narrow, wide = [(await site.command(*words, COLUMNS=columns)).out for columns in ("80", "200")]
        assert max(map(len, narrow.splitlines())) <= 80, narrow
        assert max(map(len, wide.splitlines())) > 80
        if words != ["batches"]:
            assert "safetensors safetensors" not in narrow
            assert narrow.count("sd_xl_base_1.0.safetensors") == 3
            assert "step 8 of 20" in narrow


# Workflows


async def test_workflows_are_listed_by_name(site: Site) -> None:
    assert "You have no workflows yet" in (await site.command("workflows")).out
    workflow = await site.client.create_workflow(invert(), name="Portrait, soft", output_extension="png")
    ran = await site.command("workflows")
    assert (ran.code, workflow.slug in ran.out, "Portrait, soft" in ran.out) == (0, True, True)
    assert [load["slug"] for load in json.loads((await site.command("workflows", "--json")).out)] == [workflow.slug]
    for words in (["rename", "nothing", "Other"], ["remove", "nothing"]):
        ran = await site.command("workflows", *words)
        assert (ran.code, "There are: Portrait, soft." in ran.err) == (2, True), ran.err
    ran = await site.command("workflows", "replace", "Portrait, soft", "nowhere.json")
    assert (ran.code, "nowhere.json" in ran.err) == (2, True)


# Completion


async def test_shell_completes_workflows_presets_and_ids(site: Site) -> None:
    workflow = await site.client.create_workflow(invert(), name="portrait", output_extension="png")
    other = invert() | {"4": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}}}
    spaced = await site.client.create_workflow(other, name="two words", output_extension="png")
    await site.client.create_preset("medium", {"steps": 20})
    job, batch = await site.submit(label="boat"), await site.batch(1)

    async def completed(line: str, **env: str) -> list[str]:
        words = line.split(" ")
        shell = {"_COMFYRELAY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        return [splitline for splitline in (await site.command(**{**shell, **env})).out.splitlines() if splitline]

    assert await completed("comfyrelay workflows remove ") == [spaced.slug, workflow.name]
    assert "portrait" in await completed("comfyrelay run por")
    assert await completed("comfyrelay run x --preset m") == ["medium"]
    assert {job["id"][-8:], batch["id"][-8:]} <= {*await completed("comfyrelay cancel ")}
    assert batch["id"][-8:] not in await completed("comfyrelay logs ")
    assert await completed("comfyrelay jobs --status w") == ["waiting"]
    with listen("127.0.0.1", 0) as probe:
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}"
    assert await completed("comfyrelay cancel ", COMFYRELAY_URL=nobody) == []


async def test_job_is_shown_with_its_error_or_its_output(site: Site) -> None:
    broken = await failed(site)
    done = await run(site.api, site.user, site.worker, site.effect_id)
    ran = await site.command("show", broken["id"][-8:])
    assert ran.code == 0
    assert broken["id"] in ran.out
    assert "It broke." in ran.out
    ran = await site.command("show", done["id"])
    assert f"clip-{done['id'][-8:]}.png" in ran.out
    shown = json.loads((await site.command("show", done["id"], "--json")).out)
    # the address is complete and on its own line, so that a terminal makes it clickable
    [link] = [splitline for splitline in ran.out.splitlines() if splitline.startswith("http")]
    assert link.startswith(shown["outputs"][0]["url"].partition("?")[0])
    assert len(link) == len(shown["outputs"][0]["url"])
    assert (shown["id"], shown["status"]) == (done["id"], "completed")


async def test_waiting_job_shows_the_reason(site: Site) -> None:
    job = await site.submit()
    assert "Next in the queue; a worker is free." in (await site.command("show", job["id"])).out


async def test_batch_is_shown_with_counts_and_failures(site: Site) -> None:
    batch = await site.batch(3)
    await fail(site.api, site.worker, await lease(site.worker), "Too dark.")
    ran = await site.command("show", batch["id"][-8:])
    assert ran.code == 0
    assert "1 of 3 (33%)" in ran.out
    assert "2 queued, 1 failed" in ran.out
    assert "Too dark." in ran.out


async def test_retried_job_is_not_listed_as_failed(site: Site) -> None:
    batch = await site.batch(2)
    for error in ("Too dark.", "Too bright."):
        await fail(site.api, site.worker, await lease(site.worker), error)
    await site.user.post(f"/api/batches/{batch['id']}/retry-failed")
    await complete(site.api, site.worker, await lease(site.worker))
    await fail(site.api, site.worker, await lease(site.worker), "Out of memory.")
    ran = await site.command("show", batch["id"])
    assert "1 completed, 1 failed" in ran.out
    assert "Out of memory." in ran.out
    assert "Too" not in ran.out
    await site.user.post(f"/api/batches/{batch['id']}/retry-failed")
    await complete(site.api, site.worker, await lease(site.worker))
    ran = await site.command("show", batch["id"])
    assert "2 completed" in ran.out
    assert "Out of memory." not in ran.out


# Logs


async def test_followed_logs_end_with_the_job_and_its_exit_code(site: Site) -> None:
    job = await site.submit()
    leased = await lease(site.worker)
    await site.worker.post("/api/worker/heartbeat", {**lease_of(leased), "logs": ["loading\x1b[2J"]})
    running = await commands.start("logs", job["id"], "-f", env=site.env)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await running.out.readline() == b"loading\n"
        await site.worker.post("/api/worker/heartbeat", {**lease_of(leased), "logs": ["sampling"]})
        assert await running.out.readline() == b"sampling\n"
        await complete(site.api, site.worker, leased)
        assert (await running.ended()).code == 0
    plain = await site.command("logs", job["id"])
    assert (plain.code, plain.out) == (0, "loading\nsampling\n")
    [first, _] = (await site.command("logs", job["id"], "--json")).out.splitlines()
    assert json.loads(first)["line"] == "loading\x1b[2J"


async def test_followed_logs_of_a_failed_job_exit_with_1(site: Site) -> None:
    job = await failed(site)
    ran = await site.command("logs", job["id"], "--follow")
    assert (ran.code, ran.err) == (1, "The job is failed.\n")
    assert (await site.command("logs", job["id"])).code == 0


# Actions


async def test_several_jobs_are_paused_resumed_and_canceled_at_once(site: Site) -> None:
    one, two = await site.submit(), await site.submit()
    ran = await site.command("pause", one["id"], two["id"][-8:])
    assert (ran.code, ran.out.count("The job is paused.")) == (0, 2)
    assert await status_of(site, one) == await status_of(site, two) == "paused"
    assert (await site.command("resume", one["id"])).code == 0
    assert await status_of(site, one) == "queued"
    ran = await site.command("cancel", one["id"], "--json")
    assert [load["status"] for load in json.loads(ran.out)] == ["canceled"]


async def test_paused_queue_is_shown_by_every_listing_until_it_is_resumed(site: Site) -> None:
    ran = await site.command("pause")
    assert ran.out == "The queue is paused. It holds no jobs yet. Resume it to run new ones.\n"
    job = await site.submit()
    note = "The queue is paused. It holds 1 job. Resume it to continue."
    for command in ("jobs", "batches"):
        ran = await site.command(command, "--json")
        assert (ran.code, note in ran.err) == (0, True)
    assert note in (await site.command("top", "--once")).out
    assert json.loads((await site.command("top", "--json")).out)["held"] == 1
    assert note in (await site.command("show", job["id"])).out
    assert (await site.command("resume")).out == "The queue is resumed.\n"
    assert (await site.command("jobs")).err == ""
    assert json.loads((await site.command("pause", "--now", "--json")).out)["paused_at"] is not None


async def test_immediate_pause_interrupts_the_running_job(site: Site) -> None:
    job = await site.submit()
    leased = await lease(site.worker)
    await site.command("pause", job["id"], "--now")
    answer = await site.worker.post("/api/worker/heartbeat", lease_of(leased))
    assert answer["stop"] == "pause"


async def test_refused_job_exits_with_2_and_the_others_are_changed(site: Site) -> None:
    done, waiting = await run(site.api, site.user, site.worker, site.effect_id), await site.submit()
    ran = await site.command("cancel", done["id"], waiting["id"])
    assert ran.code == 2
    assert ran.err.startswith(f"job {done['id'][-8:]}: ")
    assert await status_of(site, waiting) == "canceled"


async def test_mistyped_id_changes_nothing(site: Site) -> None:
    job = await site.submit()
    ran = await site.command("cancel", job["id"], "00000000")
    assert (ran.code, ran.out) == (2, "")
    assert "There is no job or batch '00000000'." in ran.err
    assert await status_of(site, job) == "queued"


@pytest.mark.journey
async def test_every_job_action_works_on_a_batch(site: Site) -> None:
    batch = await site.batch(2)
    short = batch["id"][-8:]
    assert "2 jobs paused." in (await site.command("pause", short)).out
    assert "2 jobs resumed." in (await site.command("resume", short)).out
    assert "It is already there." in (await site.command("move", short, "--to", "top")).out
    first = await site.submit()
    assert "Moved." in (await site.command("move", short, "--to", "bottom")).out
    assert "Moved." in (await site.command("move", short, "--before", first["id"][-8:])).out
    ran = await site.command("move", short)
    assert (ran.code, "--to or --before" in ran.err) == (2, True)
    await site.client.move("job", first["id"], "top")
    assert "Moved." in (await site.command("move", short, "--to", "top")).out
    await site.client.cancel("job", first["id"])
    await fail(site.api, site.worker, await lease(site.worker))
    assert "has no seed to change" in (await site.command("retry", short, "--new-seed")).err
    assert "1 job submitted again." in (await site.command("retry", short)).out
    assert "2 jobs canceled." in (await site.command("cancel", short)).out
    again = json.loads((await site.command("retry", short, "--all", "--json")).out)
    assert [(rerun["total"], rerun["id"] != batch["id"]) for rerun in again] == [(2, True)]


async def test_job_is_retried_as_a_new_one(site: Site) -> None:
    job = await failed(site)
    [again] = json.loads((await site.command("retry", job["id"], "--json")).out)
    assert (again["retry_of"], again["status"]) == (job["id"], "queued")
    message = (await site.command("retry", job["id"])).out
    assert f"The job was already retried as {again['id']}, which is queued." in message.replace("\n", " ")
    assert (await site.command("retry", job["id"], "--all")).code == 2


async def test_adjacent_jobs_move_down_together(site: Site) -> None:
    jobs = [await site.submit() for _ in range(4)]
    moved = await site.command("move", jobs[0]["id"], jobs[1]["id"], "--to", "down")
    assert moved.out.count("Moved.") == 2
    waiting = [(await site.client.job(job["id"])).waiting for job in jobs]
    assert [position and position.position for position in waiting] == [2, 3, 1, 4]


async def test_jobs_moved_to_the_top_keep_the_given_order(site: Site) -> None:
    jobs = [await site.submit() for _ in range(4)]
    assert (await site.command("move", jobs[2]["id"], jobs[3]["id"], "--to", "top")).code == 0
    assert (await site.command("move", jobs[0]["id"], "--to", "down")).code == 0
    waiting = [(await site.client.job(job["id"])).waiting for job in jobs]
    assert [position and position.position for position in waiting] == [4, 3, 1, 2]


# Presets


async def test_presets_are_added_listed_and_removed(site: Site, tmp_path: Path) -> None:
    (tmp_path / "medium.json").write_text('{"steps": 20, "profile": "medium"}')
    added = await site.command("presets", "add", "medium", "--file", str(tmp_path / "medium.json"), "--set", "steps=25")
    assert (added.code, added.out) == (0, "Saved preset medium with 2 values.\n")
    await site.command("presets", "add", "look-dev", "--set", "prompt=a cat", "--set", "fast=true")
    [newest, oldest] = json.loads((await site.command("presets", "--json")).out)
    assert (newest["name"], newest["values"]) == ("look-dev", {"prompt": "a cat", "fast": True})
    assert oldest["values"] == {"steps": 25, "profile": "medium"}
    assert "steps=25" in (await site.command("presets")).out
    assert (await site.command("presets", "remove", "medium")).out == "Removed preset medium.\n"
    removed = await site.command("presets", "remove", "medium")
    assert (removed.code, removed.err) == (2, "Error: There is no preset 'medium'.\n")


@pytest.mark.parametrize("words", [["empty"], ["x", "--set", "no-equals-sign"], ["x", "--file", "nowhere.json"]])
async def test_preset_with_invalid_values_is_refused(site: Site, words: list[str]) -> None:
    assert (await site.command("presets", "add", *words)).code == 2
    assert await site.client.presets() == []


# Connection and authentication


async def test_unreachable_server_is_one_sentence_and_exit_code_2(site: Site) -> None:
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    message = f"Error: There is no response at http://127.0.0.1:{port}. Start it with: comfyrelay server\n"
    for words in (["jobs"], ["show", "12345678"], ["cancel", "12345678"], ["presets"], ["top", "--once"]):
        ran = await site.command(*words, "--url", f"http://127.0.0.1:{port}")
        assert (ran.code, ran.out, ran.err) == (2, "", message)
    # without an address, commands use the default address of a server with these settings
    ran = await site.command("jobs", COMFYRELAY_URL="", COMFYRELAY_PORT=str(port), COMFYRELAY_HOST="0.0.0.0")
    assert (ran.code, ran.err) == (2, message)


async def test_missing_token_is_reported(site: Site) -> None:
    ran = await site.command("jobs", COMFYRELAY_TOKEN="")
    assert (ran.code, ran.out) == (2, "")
    assert "Set COMFYRELAY_TOKEN to one of your API tokens." in ran.err


# Live view


async def test_top_shows_queue_progress_and_outcomes_once(site: Site) -> None:
    await failed(site, "Too dark.")
    done = await run(site.api, site.user, site.worker, site.effect_id)
    batch = await site.batch(2, label="boats")
    leased = await lease(site.worker)
    progress = {"value": 0.4, "phase": "running", "node": "KSampler", "step": 8, "steps": 20}
    await site.worker.post("/api/worker/heartbeat", {**lease_of(leased), "progress": progress})
    await site.api.engine.outbox.delivery.idle()
    ran = await site.command("top", "--once")
    assert (ran.code, ran.err) == (0, "")
    for text in ("processing 1", "queued 1", "40%", "KSampler, step 8 of 20", "boats #1", "Too dark.", done["id"][-8:]):
        assert text in ran.out
    seen = json.loads((await site.command("top", "--json")).out)
    assert seen["counts"] == {"processing": 1, "queued": 1, "paused": 0}
    assert [batch["id"] for batch in seen["batches"]] == [batch["id"]]
    assert [outcome["status"] for outcome in seen["outcomes"]] == ["completed", "failed"]
    # only administrators can see workers
    assert seen["workers"] is None


@pytest.mark.parametrize("began_at", ["yesterday", "2030-01-01T00:00:00", 7])
async def test_jobs_with_invalid_worker_reports_are_shown(site: Site, began_at: object) -> None:
    await site.submit()
    leased = await lease(site.worker)
    progress = {"value": 0.4, "node": ["a"], "step": "x", "steps": {}, "phase": "sampling", "began_at": began_at}
    await site.worker.post("/api/worker/heartbeat", {**lease_of(leased), "progress": progress})
    await site.api.engine.outbox.delivery.idle()
    for words in (["jobs"], ["top", "--once"]):
        ran = await site.command(*words)
        assert (ran.code, ran.err) == (0, "")
        assert ("40%" in ran.out, "sampling, about" in ran.out) == (True, True)


async def test_top_shows_why_nothing_runs(site: Site) -> None:
    job = await site.submit()
    message = f"job {job['id'][-8:]}: Next in the queue; a worker is free."
    assert message in (await site.command("top", "--once")).out


@asynccontextmanager
async def top_in_a_terminal(site: Site) -> AsyncIterator[tuple[asyncio.StreamReader, Callable[[bytes], object], Any]]:
    """Yield the screen, a function that sends keys, and the process."""
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "comfyrelay",
        "top",
        "--every",
        "0.1",
        env=site.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=_own_terminal(theirs),
    )
    os.close(theirs)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0, closefd=False)
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.readuntil(b"q quits")
            yield reader, lambda keys: os.write(ours, keys), process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        transport.close()
        os.close(ours)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals on Windows")
@pytest.mark.parametrize("leave", [b"q", b"\x03"], ids=["q", "ctrl-c"])
async def test_top_updates_in_a_terminal_until_it_is_closed(site: Site, leave: bytes) -> None:
    async with top_in_a_terminal(site) as (screen, press, process):
        job = await site.submit()
        await screen.readuntil(b"queued")
        await site.user.post(f"/api/ai-jobs/{job['id']}/cancel")
        await screen.readuntil(job["id"][-8:].encode())
        press(leave)
        assert await process.wait() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals on Windows")
async def test_top_keys_pause_resume_cancel_retry_and_move(site: Site) -> None:
    batches = [await site.batch(2, label=label) for label in ("first", "second")]
    [oldest, newest] = [batch["id"][-8:].encode() for batch in batches]
    async with top_in_a_terminal(site) as (screen, press, process):
        await screen.readuntil(oldest)
        # the newest job is selected first; j or the arrow key selects the next
        press(b"p")
        await screen.readuntil(b"batch " + newest + b": 2 jobs paused.")
        press(b"p")
        await screen.readuntil(b"2 jobs resumed.")
        press(b"t")
        await screen.readuntil(b"batch " + newest + b": Moved.")
        press(b"\x1b[B" + b"x")
        await screen.readuntil(b"Cancel batch " + oldest + b"? y cancels it")
        press(b"n")
        await screen.readuntil(b"q quits")
        assert (await site.client.batch(batches[0]["id"])).counts["queued"] == 2
        press(b"xy")
        await screen.readuntil(b"2 jobs canceled.")
        # a canceled batch is not active, so its newest item is shown in its place
        press(b"r")
        await screen.readuntil(b": Submitted again.")
        press(b"q")
        assert await process.wait() == 0
    assert (await site.client.batch(batches[0]["id"])).counts["canceled"] == 1


def _own_terminal(fd: int) -> Callable[[], None]:
    """Return a function that makes this the controlling terminal, so that Ctrl-C reaches the process."""
    return lambda: os.login_tty(os.dup(fd))


# Notifications


async def test_notify_test_lists_delivered_and_failed_messages(site: Site) -> None:
    async with open_receiver() as receiver:
        good = receiver.url.replace("http://", "json://user:hunter22@")
        with listen("127.0.0.1", 0) as probe:
            port = probe.getsockname()[1]
        bad = f"json://127.0.0.1:{port}/topsecret"
        ran = await site.command("notify", "test", good, bad)
        as_json = await site.command("notify", "test", bad, "--json")
    assert ran.code == as_json.code == 1
    first, second = ran.out.splitlines()
    assert first.endswith("/…  sent")
    assert second.startswith(f"json://127.0.0.1:{port}/…  failed: ")
    assert json.loads(as_json.out)["failures"][0]["url"] == f"json://127.0.0.1:{port}/…"
    for secret in ("hunter22", "topsecret"):
        assert secret not in ran.out + ran.err + as_json.out + as_json.err
    assert "notifications arrive here" in receiver.received[0][1]
