"""Records of jobs, attempts and events."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.simulator import Fail
from tests.system.acceptance.script_desk import ScriptDesk

pytestmark = pytest.mark.asyncio(loop_scope="session")


def moment(text: Any) -> datetime:
    return datetime.fromisoformat(str(text))


async def test_job_records_its_parameters_state_and_times(desk: ScriptDesk) -> None:
    """These are id, status, priority, folder, prompts, profile, template, tries, seed mode, other options and times.

    Where: `ai_jobs`; `GET /api/ai-jobs/{id}`, `GET /api/desk/jobs/{id}`
    """
    wish = {
        **{"positive": "a cat", "negative": "dogs", "input_subdir": "cats", "profile": "medium"},
        **{"template": "clip.json", "tries": 2, "randomize_seed": True, "extra_args": "--seed 5"},
    }
    job = await desk.client.submit(workflow_slug="script", input_payload=wish, priority=3, label="kept")
    found = await desk.ended(job.id)
    assert (found.id, found.status, found.priority, found.label) == (job.id, "completed", 3, "kept")
    inputs = {input_.key: input_.value for input_ in (await desk.about(job.id)).inputs}
    assert inputs == wish
    assert moment(found.created_at) <= moment(found.started_at) <= moment(found.completed_at)


async def test_job_records_its_log_path_and_last_error(desk: ScriptDesk) -> None:
    """The log has a path, and the last error is a sentence.

    Where: `ai_jobs`, `job_attempts`
    """
    job_id = await desk.script(template="refused.json")
    found = await desk.ended(job_id)
    assert found.error == "ImageInvert (3): input 'image' is not connected"
    assert Path((await desk.last_attempt(job_id))["log"]).is_file()


async def test_attempt_records_times_exit_code_seed_and_outcome(desk: ScriptDesk) -> None:
    """Each run of a job is recorded with its number.

    Where: `job_attempts`
    """
    job_id = await desk.script(extra_args="--seed 77")
    await desk.ended(job_id)
    [attempt] = (await desk.about(job_id)).attempts
    assert (attempt.number, attempt.outcome, attempt.seed) == (1, "completed", 77)
    record = attempt.about or {}
    assert (record["exit_code"], len(record["outputs"])) == (0, 1)
    assert moment(attempt.started_at) <= moment(attempt.ended_at)


async def test_all_attempts_of_a_job_are_kept(desk: ScriptDesk) -> None:
    """Failed attempts are kept after a later success.

    Where: `job_attempts`
    """
    desk.simulator.misbehave(Fail(class_type="ImageInvert", message="No space left on device", times=1))
    job_id = await desk.graph()
    assert (await desk.ended(job_id)).status == "completed"
    first, second = (await desk.about(job_id)).attempts
    assert (first.number, first.outcome, second.number, second.outcome) == (1, "failed", 2, "completed")
    assert "No space left" in (first.error or "")


async def test_event_records_its_job_time_kind_and_text(desk: ScriptDesk) -> None:
    """Events are numbered per job, so that a client can catch up.

    Where: `job_events`; `GET /api/ai-jobs/{id}/events`
    """
    job_id = await desk.graph()
    await desk.ended(job_id)
    seen = [event async for event in desk.client.events(job_id) if event.id is not None]
    assert [(event.id, event.type) for event in seen] == [(1, "job:queued"), (2, "job:started"), (3, "job:completed")]
    assert all(moment(event.data["at"]) for event in seen)
    missed = [event async for event in desk.client.events(job_id, after=2) if event.id is not None]
    assert [event.type for event in missed] == ["job:completed"]
