"""The wheel works in environments with only its own dependencies.

Every change builds the environments of a GPU host and a desk; `make long` also builds the server's.
"""

import signal
import subprocess
from importlib.metadata import files, packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from comfyrelay.extras import MODULES, missing_text
from tests.support.environments import Environment, Wheel
from tests.support.server_processes import free_port

HEAVY = ("PIL", "aiohttp", "alembic", "apprise", "av", "boto3", "fastapi", "grpc", "sqlalchemy", "uvicorn", "yaml")
IMPORTS = """
import pkgutil
from importlib import import_module
from importlib.util import find_spec
for name in ("cli", "client", "comfyui", "worker"):
    package = import_module(f"comfyrelay.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
print(*(name for name in %r if find_spec(name)))
"""


@pytest.mark.journey
def test_gpu_host_needs_no_server_database_or_ffmpeg(base: Environment) -> None:
    assert base.python(IMPORTS % (HEAVY,)).split() == []


@pytest.mark.journey
def test_base_install_prints_help(base: Environment) -> None:
    done = base.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "One queue for all your ComfyUI GPUs" in done.stdout


def test_base_install_can_run_the_worker_check(base: Environment) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    done = base.run(
        "worker", "check", API_BASE_URL=nobody, COMFYUI_BASE_URL=nobody, FLEET_SECRET="x" * 32, FLEET_SLUG="gpus"
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert f"ComfyUI {nobody}" in done.stdout
    assert f"control plane {nobody}" in done.stdout


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("up", "desk"),
        ("doctor", "desk"),
        ("run some-effect", "desk"),
        ("notify test json://localhost", "desk"),
        ("server", "server"),
        ("admin create --email a@example.com --password secret-enough", "server"),
        ("db status", "server"),
        ("db upgrade", "server"),
        ("reconcile", "server"),
        ("simulator --port 0", "simulator"),
        ("gateway --url http://relay.example", "gateway"),
        ("fleet scaler", "server,kubernetes"),
    ],
)
def test_missing_extra_is_reported_with_its_install_command(base: Environment, command: str, extra: str) -> None:
    done = base.run(*command.split(), COMFYRELAY_PORT=str(free_port()))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {missing_text(*extra.split(','))}\n"


@pytest.mark.parametrize(
    ("setting", "value", "extra"),
    [
        ("STORAGE_URL", "s3://bucket", "s3"),
        ("OUTPUT_VALIDATION", "fail", "media"),
        ("VALIDATE_ASG_INSTANCE", "true", "aws"),
        ("ALERTS", '{"*": {"urls": ["json://localhost"]}}', "alerts"),
        ("TRACES_URL", "http://127.0.0.1:4318/v1/traces", "traces"),
    ],
)
def test_server_does_not_start_without_a_configured_feature(
    server: Environment, setting: str, value: str, extra: str
) -> None:
    configured = {"COMFYRELAY_OUTPUT_VALIDATION": "warn", f"COMFYRELAY_{setting}": value}
    done = server.run("server", **configured, COMFYRELAY_PORT=str(free_port()))
    assert done.returncode == 2
    assert done.stderr.endswith(f"Error: {missing_text(extra)}\n")
    assert "Traceback" not in done.stderr


def test_databases_need_only_the_server_extra(server: Environment, tmp_path: Path) -> None:
    done = server.run("db", "upgrade", COMFYRELAY_DATA_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_desk_starts_and_makes_its_first_picture(desk: Environment, tmp_path: Path) -> None:
    environ = {"COMFYRELAY_DATA_DIR": str(tmp_path / "data"), "COMFYRELAY_PORT": str(free_port())}
    with subprocess.Popen(desk.words("up"), env=desk.environ(**environ), stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            assert f"is up at http://127.0.0.1:{environ['COMFYRELAY_PORT']}" in up.stdout.readline()
            sample = tmp_path / "data" / "inputs" / "examples" / "sample.png"
            done = desk.run("run", "invert-image", "--input", str(sample), "--out", str(tmp_path / "made"), **environ)
            assert done.returncode == 0, done.stderr
            [output] = (tmp_path / "made").iterdir()
            assert output.stat().st_size > 0
            up.send_signal(signal.SIGINT)
            up.stdout.read()
            assert up.wait() == 0
        finally:
            up.kill()


def test_extras_contain_the_modules_that_commands_require(wheel: Wheel) -> None:
    base = wheel.needs().keys()
    assert wheel.extras == MODULES.keys()
    for extra, modules in MODULES.items():
        names = set().union(*map(distributions_with, modules))
        assert names <= wheel.needs([extra]).keys() - base
        assert names == {canonicalize_name(name) for name in wheel.direct(extra)}


def distributions_with(module: str) -> set[str]:
    """Return the distributions that contain this module; several can share its top-level package."""
    path = module.replace(".", "/")
    return {
        canonicalize_name(name)
        for name in packages_distributions()[module.partition(".")[0]]
        if any(file.as_posix().startswith((f"{path}/", f"{path}.")) for file in files(name) or ())
    }
