"""Script jobs share frozen inputs."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.desk.scripts.frozen_inputs import HIDDEN, FrozenInputs
from tests.support.script_runs import job, settings_in


def test_concurrent_jobs_share_their_frozen_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(tmp_path)
    (settings.input_folder / "cats" / "a.png").write_bytes(b"cat")
    snapshots = FrozenInputs(tmp_path / "snapshots", settings)
    copy, concurrent = shutil.copy2, []

    def copy_while_another_job_is_added(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(shutil, "copy2", copy)
        concurrent.append(snapshots.take(job()))
        return copy(*args, **more)

    monkeypatch.setattr(shutil, "copy2", copy_while_another_job_is_added)
    assert [snapshots.take(job())] == concurrent
    [folder] = (settings.input_folder / HIDDEN).iterdir()
    assert (folder / "cats" / "a.png").read_bytes() == b"cat"
