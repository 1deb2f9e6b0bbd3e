"""Each output keeps one name in the output folder."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from comfyrelay.desk.batches import output_copies
from comfyrelay.desk.batches.output_copies import OutputCopies, choose_name, put_file
from comfyrelay.domain.outputs import copies_in
from comfyrelay.worker.files.outputs import CollectedOutput
from tests.support.leases import make_lease


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_copy_from_before_a_kill_is_reused(tmp_path: Path) -> None:
    source, place = write(tmp_path / "source", "output"), write(tmp_path / "0001_cat.png", "output")
    chosen = choose_name(source, place, "0123abcd", {place})
    put_file(source, chosen, None)
    assert chosen == place
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0001_cat.png", "source"]


def test_linked_copy_from_before_a_kill_is_reused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "output")
    put_file(source, tmp_path / "0001_cat.png", None)
    assert (
        choose_name(source, tmp_path / "0001_cat.png", "0123abcd", {tmp_path / "0001_cat.png"}).name == "0001_cat.png"
    )


def test_linked_copy_of_another_job_is_not_shared(tmp_path: Path) -> None:
    """The output of a job that reuses the output of another job is a link to the same file."""
    source = write(tmp_path / "source", "output")
    put_file(source, tmp_path / "0001_cat.png", None)
    assert choose_name(source, tmp_path / "0001_cat.png", "0123abcd", ()).name == "0001_cat 0123abcd.png"


def test_saved_name_with_other_content_is_not_replaced(tmp_path: Path) -> None:
    source, place = write(tmp_path / "source", "output"), write(tmp_path / "0001_cat.png", "somebody's")
    assert choose_name(source, place, "0123abcd", {place}) == tmp_path / "0001_cat 0123abcd.png"


def test_equal_file_of_another_job_is_not_shared(tmp_path: Path) -> None:
    source, place = write(tmp_path / "source", "output"), write(tmp_path / "0001_cat.png", "output")
    assert choose_name(source, place, "0123abcd", ()) == tmp_path / "0001_cat 0123abcd.png"


async def test_jobs_that_end_together_get_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = OutputCopies(tmp_path / "output", data_dir=tmp_path / "data", umask=None)
    copies.engine = cast(Any, object())
    # both jobs have the same label
    monkeypatch.setattr(copies, "_path", AsyncMock(return_value=tmp_path / "output" / "cat.png"))
    monkeypatch.setattr(copies, "_stored_output", AsyncMock(return_value=None))
    made = [write(tmp_path / f"{number}.png", f"output {number}") for number in range(2)]
    outputs = [CollectedOutput(path=path, size=8, sha256="", mime_type="image/png", metadata={}) for path in made]
    leases = [make_lease(1), make_lease(2)]
    await asyncio.gather(*map(copies.copy_run, leases, outputs, [lambda: None] * 2))
    assert sorted(path.read_text() for path in (tmp_path / "output").iterdir()) == ["output 0", "output 1"]


async def test_copies_before_a_failed_one_remain_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = OutputCopies(tmp_path / "output", data_dir=tmp_path / "data", umask=None)
    copies.engine = cast(Any, object())
    monkeypatch.setattr(copies, "_path", AsyncMock(return_value=tmp_path / "output" / "cat.png"))
    monkeypatch.setattr(copies, "_stored_output", AsyncMock(return_value=None))

    def fill_up(source: Path, path: Path, umask: int | None) -> None:
        if source.name == "1.png":
            raise OSError(errno.ENOSPC, "No space left on device")
        put_file(source, path, umask)

    monkeypatch.setattr(output_copies, "put_file", fill_up)
    made = [write(tmp_path / f"{number}.png", f"output {number}") for number in range(3)]
    first, *more = [CollectedOutput(path=path, size=8, sha256="", mime_type="image/png", metadata={}) for path in made]
    lease = make_lease(1)
    problem = await copies.copy_run(lease, replace(first, more=tuple(more)), lambda: None)
    assert problem is not None
    assert "No space left" in problem
    assert copies_in(lease.about) == {1: "cat.png"}
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["cat.png"]
