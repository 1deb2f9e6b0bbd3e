"""Commands start fast because they import only what they need."""

import subprocess
import sys
from pathlib import Path

import pytest

from comfyrelay.protocol import base, desk, jobs, user, worker
from comfyrelay.protocol.admin import autoscaling, catalogue, dispatches, fleets, operations, tenants, workers

# Runs a command and prints the names of all imported modules as the last line.
PROGRAM = """
import sys
from comfyrelay.cli.main import main
try:
    main()
finally:
    print()
    print(*sys.modules)
"""
# A few more modules may be needed for a good reason. More than that is an import in the wrong place.
SPARE_MODULES = 3
SERVER = {"aiosqlite", "alembic", "asyncpg", "fastapi", "sqlalchemy", "starlette", "uvicorn"}
OPTIONAL = {"aiohttp", "apprise", "av", "boto3", "grpc", "numpy", "PIL"}
CLIENT = {"anyio", "httpx", "pydantic_settings", "websockets"}
# 1 refuses connections.
URL = "http://127.0.0.1:1"


def modules_after(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("arguments", "own_modules", "not_needed"),
    [
        (("--help",), 7, {"asyncio", "importlib.metadata", "pydantic", *CLIENT, *SERVER, *OPTIONAL}),
        (("--version",), 7, {"asyncio", "pydantic", "rich.console", *CLIENT, *SERVER, *OPTIONAL}),
        # Typer checks the options of a command with pydantic.
        (("jobs", "--help"), 18, {*CLIENT, *SERVER, *OPTIONAL}),
        (("up", "--help"), 23, {*CLIENT, *SERVER, *OPTIONAL}),
        (("worker", "--help"), 15, {*CLIENT, *SERVER, *OPTIONAL}),
        (("jobs", "--url", URL), 51, {"click", "markdown_it", "pydantic_settings", *SERVER, *OPTIONAL}),
        (("jobs",), 55, {"click", "markdown_it", *SERVER, *OPTIONAL}),
        (("show", "abcd1234", "--url", URL), 51, {"click", "markdown_it", "pydantic_settings", *SERVER, *OPTIONAL}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_command_imports_only_what_it_needs(
    arguments: tuple[str, ...],
    own_modules: int,
    not_needed: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # no desk and no configuration file are found here
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMFYRELAY_PORT", "1")
    found = modules_after(*arguments)
    assert not_needed & set(found) == set()
    own = sorted(name for name in found if name.partition(".")[0] == "comfyrelay")
    assert len(own) <= own_modules + SPARE_MODULES, own


@pytest.mark.parametrize(
    ("module", "not_needed"),
    [
        ("comfyrelay.client", {"comfyrelay.protocol.user", "comfyrelay.settings", "rich", "typer", *SERVER, *OPTIONAL}),
        ("comfyrelay.desk.desk", {"alembic", *OPTIONAL}),
    ],
)
def test_optional_modules_are_not_imported_at_startup(module: str, not_needed: set[str]) -> None:
    code = f"import sys; sys.modules['httpx._main'] = None; import {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not_needed & set(done.stdout.split()) == set()


MODULES = (
    *(autoscaling, catalogue, dispatches, fleets, operations, tenants, workers),
    *(base, desk, jobs, user, worker),
)


def test_protocol_needs_no_web_framework() -> None:
    names = ", ".join(module.__name__ for module in MODULES)
    program = f"import sys, {names}, comfyrelay.client, comfyrelay.worker.control; print('fastapi' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"
