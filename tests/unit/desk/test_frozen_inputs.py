"""The frozen inputs of script jobs, when two are added at once."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.desk.scripts.frozen_inputs import HIDDEN, FrozenInputs
from tests.support.script_runs import job, settings_in


def test_two_jobs_of_the_same_inputs_may_be_added_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(tmp_path)
    (settings.input_folder / "cats" / "a.png").write_bytes(b"cat")
    snapshots = FrozenInputs(tmp_path / "snapshots", settings)
    copy, others = shutil.copy2, []

    def while_another_is_added(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(shutil, "copy2", copy)
        others.append(snapshots.take(job()))
        return copy(*args, **more)

    monkeypatch.setattr(shutil, "copy2", while_another_is_added)
    assert [snapshots.take(job())] == others
    [kept] = (settings.input_folder / HIDDEN).iterdir()
    assert (kept / "cats" / "a.png").read_bytes() == b"cat"
