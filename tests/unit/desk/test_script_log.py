"""Output in any encoding and in any chunks becomes lines, and a log file has a size limit."""

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.desk.scripts.log import MAX_LINE_LENGTH, BoundedLog, Line, Lines
from comfyrelay.desk.startup.scripts import DeskScript
from comfyrelay.system.atomic import PART_PREFIX
from tests.support.script_runs import settings_in


def lines_of(*pieces: bytes) -> list[Line]:
    lines = Lines()
    return [line for piece in pieces for line in lines.feed(piece)] + list(lines.feed(b"", is_last=True))


def test_line_endings_of_all_systems_are_supported() -> None:
    assert lines_of(b"one\ntwo\r\n\nthree") == [Line("one"), Line("two"), Line(""), Line("three")]


def test_progress_bar_updates_are_overwritten_lines() -> None:
    expected = [Line("10%", is_overwritten=True), Line("20%", is_overwritten=True), Line("done")]
    assert lines_of(b"\r10%\r20%\rdone\n") == expected
    assert lines_of(b"10%\r20%\rdone\n") == expected
    assert lines_of(b"\r10%", b"\r", b"20%\r", b"done\r", b"\n") == expected


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", "é🐈".encode(), b"\xff\xc3", b"\x1b[31m"])), st.data())
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert lines_of(*pieces) == lines_of(whole)


def test_invalid_bytes_are_replaced() -> None:
    assert lines_of(b"caf\xe9 \xff\xfe\n") == [Line("caf\ufffd \ufffd\ufffd")]


def test_control_sequences_are_removed() -> None:
    text = "\x1b]0;title\x07\x1b[1;31mred\x1b[0m\x1b[2K \x00\x07\ttab\n"
    assert lines_of(text.encode()) == [Line("red \ttab")]


def test_very_long_line_is_split_without_loss() -> None:
    text = "x" * (3 * MAX_LINE_LENGTH + 5)
    for end in ("\n", ""):
        lines = lines_of(*(text[at : at + 60_000].encode() for at in range(0, len(text), 60_000)), end.encode())
        assert "".join(line.text for line in lines) == text
        assert [line.continues for line in lines] == [True, True, True, False]


def test_log_below_its_limit_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.txt"
    with BoundedLog(path, max_bytes=100_000) as log:
        log.write("one")
        log.write("t", end="")
        log.write("wo 🐈")
        log.flush()
        assert path.read_text("utf-8") == "one\ntwo 🐈\n"


def test_long_log_keeps_its_beginning_and_end(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    count = 200_000
    written = 0
    largest = 0
    with BoundedLog(path, max_bytes=100_000) as log:
        for number in range(count):
            line = f"line {number}"
            log.write(line)
            written += len(line) + 1
            if number % 1000 == 0:
                log.flush()
                largest = max(largest, path.stat().st_size)
    text = path.read_text("utf-8")
    assert max(largest, len(text.encode())) <= 100_000
    lines = text.splitlines()
    [gap] = [at for at, line in enumerate(lines) if "omitted" in line]
    head, tail = lines[:gap], lines[gap + 1 :]
    assert head == [f"line {number}" for number in range(len(head))]
    assert tail == [f"line {number}" for number in range(count - len(tail), count)]
    assert min(len(head), len(tail)) > 1000
    omitted = int(re.sub(r"\D", "", lines[gap]))
    assert omitted == written - sum(len(line) + 1 for line in head + tail)


def test_endless_line_stays_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with BoundedLog(path, max_bytes=100_000) as log:
        for _ in range(1000):
            log.write("x" * MAX_LINE_LENGTH, end="")
    assert path.stat().st_size <= 100_000 + MAX_LINE_LENGTH


@pytest.mark.skipif(sys.platform == "win32", reason="scripts need POSIX")
def test_log_that_a_killed_desk_was_shortening_is_kept_without_leftovers(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, "print('hello')")
    logs = tmp_path / "data" / "script" / "logs"
    logs.mkdir(parents=True)
    (logs / "1.log").write_text("kept")
    (logs / f"{PART_PREFIX}1").write_text("a part")
    table = settings.model_dump(mode="json", include={"script", "working_folder", "template_folder"})
    DeskScript.load(table, data_dir=tmp_path / "data", input_folder=tmp_path / "input", umask_of=lambda _folder: None)
    assert [path.name for path in logs.iterdir()] == ["1.log"]
