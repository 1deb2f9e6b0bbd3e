"""Commands start fast because they import only what they need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from comfyrelay.desk.routes import ROUTERS as DESK_ROUTERS
from comfyrelay.protocol import base, desk, jobs, user, worker
from comfyrelay.protocol.admin import autoscaling, catalogue, dispatches, fleets, operations, tenants, workers
from comfyrelay.server.app import ROUTERS
from tests.support.server_processes import free_port

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
# Starts a desk until it would import the simulator or the worker. Prints the statuses of its page and of a submission,
# the wire models that were built before that, and all imported modules.
READY_PROGRAM = """
import asyncio, http.client, json, os, sys
sys.modules["httpx._main"] = None
import comfyrelay.cli.desk.up
from comfyrelay.desk.desk import Desk
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.desk.startup import simulator, workers
from comfyrelay.protocol.base import AnswerBody, SentBody
from comfyrelay.settings import load_settings

def models(base):
    return {base, *(model for child in base.__subclasses__() for model in models(child))}

def status(method, path, secret="", **body):
    server = http.client.HTTPConnection("127.0.0.1", settings.port)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    server.request(method, path, json.dumps(body) if body else None, headers)
    return server.getresponse().status

async def stop(module):
    page = await asyncio.to_thread(status, "GET", "/healthz")
    found = models(SentBody) | models(AnswerBody)
    built = [model.__name__ for model in found if model.__pydantic_complete__]
    imported = [*sys.modules]
    secret = (settings.data_dir / "owner-secret").read_text().strip()
    body = {"effect_id": 4, "idempotency_key": "1", "input_payload": {"prompt": "a"}}
    submission = await asyncio.to_thread(status, "POST", "/api/ai-jobs", secret, **body)
    print(json.dumps([page, submission, len(found), built, imported]), flush=True)
    os._exit(0)

settings = load_settings()
simulator.import_later = workers.import_later = stop
asyncio.run(Desk(settings=settings, desk=DeskSettings()).run())
"""
# Allow a few more modules, which may have a good reason. More indicate an import in the wrong place.
SPARE_MODULES = 3
MAX_DESK_MODULES = 542
SERVER = {"aiosqlite", "alembic", "asyncpg", "fastapi", "sqlalchemy", "starlette", "uvicorn"}
OPTIONAL = {"aiohttp", "apprise", "av", "boto3", "grpc", "numpy", "PIL"}
CLIENT = {"anyio", "httpx", "pydantic_settings", "websockets"}
# Port 1 refuses connections.
URL = "http://127.0.0.1:1"


def modules_after(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("arguments", "own_modules", "not_needed"),
    [
        (("--help",), 7, {"asyncio", "importlib.metadata", "markdown_it", "pydantic", *CLIENT, *SERVER, *OPTIONAL}),
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
    # the command finds neither a desk nor a configuration file
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
        ("comfyrelay.server.main", {"alembic", "comfyrelay.autoscaling", *OPTIONAL}),
    ],
)
def test_optional_modules_are_not_imported_at_startup(module: str, not_needed: set[str]) -> None:
    code = f"import sys; sys.modules['httpx._main'] = None; import {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not_needed & set(done.stdout.split()) == set()


def test_desk_takes_jobs_before_it_imports_its_worker_and_most_routes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "desk"))
    monkeypatch.setenv("COMFYRELAY_PORT", str(free_port()))
    done = subprocess.run([sys.executable, "-c", READY_PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page, submission, models, built, modules = json.loads(done.stdout.splitlines()[-1])
    assert (page, submission) == (200, 201)
    assert models > 100
    assert built == []
    imported = set(modules)
    assert imported & {router.module for router in (*ROUTERS, *DESK_ROUTERS)} == set()
    assert imported & {"comfyrelay.autoscaling", "comfyrelay.comfyui.pool", "comfyrelay.worker.agent"} == set()
    own = [name for name in imported if name.partition(".")[0] == "comfyrelay"]
    assert len(own) <= MAX_DESK_MODULES, len(own)


MODULES = (
    *(autoscaling, catalogue, dispatches, fleets, operations, tenants, workers),
    *(base, desk, jobs, user, worker),
)


def test_protocol_needs_no_web_framework() -> None:
    names = ", ".join(module.__name__ for module in MODULES)
    program = f"import sys, {names}, comfyrelay.client, comfyrelay.worker.control; print('fastapi' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"
