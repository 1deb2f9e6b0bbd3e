"""The command of a script has the same form for every caller."""

import sys

import pytest

from comfyrelay.errors import ComfyRelayError
from tests.system.acceptance.script_desk import SCRIPT, ScriptDesk

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_command_follows_the_order_of_the_contract(desk: ScriptDesk) -> None:
    """The order is program, script, wait, profile, template, folder, prompt, optional arguments, then other options.

    Where: `desk/scripts/command.py`; [scripts](../howto/scripts.md)
    """
    job_id = await desk.script(negative="dogs", tries=2, randomize_seed=True, profile="medium", extra_args="--seed 5")
    assert (await desk.ended(job_id)).status == "completed"
    assert (await desk.last_attempt(job_id))["argv"] == [
        *(sys.executable, str(SCRIPT), "--wait", "--profile", "medium"),
        *("--template-api", str(desk.comfyui.parent / "templates" / "clip.json"), "--input-subdir", "cats"),
        *("--positive", "a cat", "--negative", "dogs", "--tries", "2", "--randomize-seed", "--seed", "5"),
    ]


async def test_unset_values_are_not_in_the_command(desk: ScriptDesk) -> None:
    """The script decides about negative prompt, tries and seed unless the job sets them.

    Where: `desk/scripts/command.py`
    """
    job_id = await desk.script(extra_args="")
    await desk.ended(job_id)
    argv = (await desk.last_attempt(job_id))["argv"]
    assert argv[-2:] == ["--positive", "a cat"]
    assert not {"--negative", "--tries", "--randomize-seed"} & {*argv}


async def test_command_is_shown_before_it_runs(desk: ScriptDesk) -> None:
    """The exact command is shown, and showing it runs nothing.

    Where: `POST /api/desk/script/preview`
    """
    wish = {"template": "clip.json", "input_subdir": "cats", "positive": "it's a cat"}
    shown = (await desk.http.post("/api/desk/script/preview", json=wish)).json()["data"]
    assert [job async for job in desk.client.jobs()] == []
    job_id = await desk.script(positive="it's a cat", extra_args="")
    await desk.ended(job_id)
    assert (await desk.last_attempt(job_id))["argv"] == shown["argv"]
    assert shown["command"].endswith("""--positive 'it'"'"'s a cat'""")


async def test_arguments_are_checked_before_a_job_is_accepted(desk: ScriptDesk) -> None:
    """All errors are reported at once, by field, and nothing is added.

    Where: `desk/scripts/command.py`, `desk/scripts/workflow.py`
    """
    wrong = {"input_subdir": "../x", "template": "none.json", "profile": "none", "tries": 5000, "extra_args": "--rm"}
    refused = await desk.http.post(
        "/api/ai-jobs",
        json={
            "workflow_slug": "script",
            "input_payload": {"positive": "a cat", **wrong},
            "idempotency_key": "wrong",
        },
    )
    assert refused.status_code == 422
    wrong_fields = {*refused.json()["errors"]}
    # choices and ranges of the form are checked first
    assert wrong_fields <= {*wrong}
    assert {"template", "profile", "tries"} <= wrong_fields
    with pytest.raises(ComfyRelayError) as places:
        await desk.script(input_subdir="../x", extra_args="--rm")
    assert {*getattr(places.value, "errors", {})} == {"input_subdir", "extra_args"}
    assert [job async for job in desk.client.jobs()] == []


async def test_existing_script_runs_unchanged(desk: ScriptDesk) -> None:
    """A script needs no changes, because only the contract is expected of it.

    Where: `desk/scripts/runner.py`
    """
    source = SCRIPT.read_bytes()
    assert b"comfyrelay" not in source.lower().replace(b"but not comfyrelay", b"")
    job_id = await desk.script()
    assert (await desk.ended(job_id)).status == "completed"
    assert SCRIPT.read_bytes() == source
    argv = (await desk.last_attempt(job_id))["argv"]
    assert argv[:2] == [sys.executable, str(SCRIPT)]


async def test_exit_code_decides_the_outcome(desk: ScriptDesk) -> None:
    """Exit code 0 means success and any other code failure; the code is kept with the attempt.

    Where: `desk/scripts/server.py`
    """
    good, bad = await desk.script(), await desk.script(template="refused.json")
    for job_id, status, code in ((good, "completed", 0), (bad, "failed", 1)):
        assert (await desk.ended(job_id)).status == status
        assert (await desk.last_attempt(job_id))["exit_code"] == code
