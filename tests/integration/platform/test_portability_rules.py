"""Platform differences are in one package. Ruff checks modules and functions (TID251); this file checks the rest."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "comfyrelay"
# Loop methods that Windows lacks, and arguments that it refuses or ignores.
METHODS = {"add_signal_handler", "add_reader", "add_writer", "create_unix_server", "create_unix_connection"}
METHODS |= {"connect_read_pipe", "connect_write_pipe"}
# Windows does not remove open files: `files.remove` retries for a moment, then explains the failure.
METHODS |= {"unlink"}
ARGUMENTS = {"preexec_fn", "start_new_session", "process_group", "pass_fds", "dir_fd", "creationflags"}


def findings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in METHODS:
                yield f"line {node.lineno}: {name}"
            case ast.keyword(arg=str() as name) if name in ARGUMENTS:
                yield f"line {node.value.lineno}: {name}="


@pytest.mark.parametrize(
    "line", ["loop.add_signal_handler(2, stop)", "Popen(['x'], start_new_session=True)", "path.unlink()"]
)
def test_calls_missing_on_windows_are_detected(line: str) -> None:
    assert list(findings(ast.parse(line)))


def test_only_the_system_package_makes_calls_missing_on_windows() -> None:
    found = [
        f"{path.relative_to(SOURCE)}, {finding}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "system"
        for finding in findings(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_ruff_refuses_platform_checks_outside_the_system_package() -> None:
    lines = ["import fcntl", "import psutil", "import sys", "from os import name", "sys.platform"]
    command = (sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise")
    for place, count in (("server/main.py", 4), ("system/files.py", 0)):
        words = [*command, "--stdin-filename", str(SOURCE / place), "-"]
        run = subprocess.run(words, input="\n".join(lines), text=True, capture_output=True, check=False)
        assert run.stdout.count("see comfyrelay/system") == count, run.stdout + run.stderr
