"""The state files of a worker survive a kill, belong to one process, and are private."""

from pathlib import Path

import pytest

from comfyrelay.errors import ConfigurationError
from comfyrelay.worker.state import StateFolder
from tests.support.leases import make_lease


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    state = StateFolder(tmp_path / "worker")
    state.open()
    return state


def reopen(state: StateFolder) -> StateFolder:
    """Open the same folder again, as after a kill."""
    state.close()
    newer = StateFolder(state.folder)
    newer.open()
    return newer


def test_second_process_cannot_use_the_folder(state: StateFolder) -> None:
    with pytest.raises(ConfigurationError, match="different WORKER_ID"):
        StateFolder(state.folder).open()


def test_folder_that_cannot_be_created_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="COMFYRELAY_WORKER_DATA_DIR"):
        StateFolder(tmp_path / "file" / "worker").open()


def test_token_is_stored_privately(state: StateFolder) -> None:
    assert state.saved_token() is None
    state.save_token("secret")
    assert reopen(state).saved_token() == "secret"
    assert (state.folder / "token.json").stat().st_mode & 0o077 == 0


def test_deleted_or_broken_token_is_none(state: StateFolder) -> None:
    state.save_token("secret")
    (state.folder / "token.json").write_text("{")
    assert state.saved_token() is None
    state.delete_token()
    state.delete_token()
    assert state.saved_token() is None


def test_leases_survive_a_restart_with_their_runs_and_output(state: StateFolder) -> None:
    lease = make_lease(input_name="a.mp4")
    state.note(lease)
    lease.urls = fresh = lease.urls.model_copy(update={"output_url": "http://127.0.0.1:9/newer"})
    lease.began_after_seconds = 1.5
    lease.about["argv"] = ["python", "mine.py"]
    state.note(lease, runs=[("http://gpu", "prompt-1")], output={"path": "x"})
    (held,) = reopen(state).held_leases()
    assert (held.lease.job, held.lease.urls) == (lease.job, fresh)
    assert (held.lease.began_after_seconds, held.lease.about) == (1.5, lease.about)
    assert list(held.runs) == [("http://gpu", "prompt-1")]
    assert held.output == {"path": "x"}


def test_ended_lease_leaves_no_state(state: StateFolder) -> None:
    lease = make_lease()
    state.note(lease)
    (state.folder_of(lease) / "output.png").write_bytes(b"x")
    state.forget(lease)
    assert state.held_leases() == []
    assert list(state.work.iterdir()) == []


def test_files_of_ended_leases_are_removed_at_startup(state: StateFolder) -> None:
    held, gone = make_lease(1), make_lease(2)
    state.note(held)
    for lease in (held, gone):
        (state.folder_of(lease) / "output.png").write_bytes(b"x")
    assert [path.name for path in reopen(state).work.iterdir()] == [held.name]


def test_broken_entry_is_removed_at_startup(state: StateFolder) -> None:
    (state.folder / "held" / "7-abc.json").write_text("{")
    assert state.held_leases() == []
    assert list((state.folder / "held").iterdir()) == []


def test_unfinished_runs_are_kept_until_they_are_forgotten(state: StateFolder) -> None:
    state.record_unfinished("comfyui-1", "p1")
    state.record_unfinished("comfyui-2", "p2")
    (state.folder / "left" / "p3.json").write_text("{")
    state.forget_unfinished("p1")
    state.forget_unfinished("p1")
    assert reopen(state).unfinished_runs() == [("comfyui-2", "p2")]
    assert [path.name for path in (state.folder / "left").iterdir()] == ["p2.json"]
