"""A step of `make up` prints one line, and the whole output of its command only if the command fails."""

import sys
from pathlib import Path

import pytest

from tools.step import run_step


def test_successful_step_prints_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_step("Build", [sys.executable, "-c", "print('noise\\n' * 130)"]) == 0
    assert capfd.readouterr().out == "Build … done\n"


def test_failed_step_prints_its_whole_output(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert run_step("Build", [sys.executable, "-u", "-c", script]) == 3
    assert capfd.readouterr().out == "Build … failed (3):\nout\nerr\n"


def test_missing_program_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_step("Build", ["/no/program"]) == 127
    assert "failed: /no/program: No such file" in capfd.readouterr().out


def test_make_up_runs_its_commands_as_steps() -> None:
    makefile = Path(__file__).parents[3].joinpath("Makefile").read_text("utf-8")
    recipes = makefile.split("\nup: ")[1].split("\n\n")[0], makefile.split("\n$(READY): ")[1].split("\n\n")[0]
    lines = [line.strip() for recipe in recipes for line in recipe.splitlines()[1:]]
    loud = [line for line in lines if not line.startswith(("@$(STEP) ", "@touch ", "@$(BIN)/comfyrelay up"))]
    assert loud == []
