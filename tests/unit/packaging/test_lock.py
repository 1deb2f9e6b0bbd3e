"""All installed packages are pinned, so builds are reproducible."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

LOCKS = ("desk.txt", "dev.txt", "node.txt", "server.txt", "worker.txt")
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+?)(?: ; (.+?))? \\$", re.M)


def _text(name: str) -> str:
    return (ROOT / "requirements" / name).read_text("utf-8")


def _pins(name: str) -> set[tuple[str, ...]]:
    return set(_PIN.findall(_text(name)))


def _required(*extras: str, groups: tuple[str, ...]) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    optional, grouped = project["project"]["optional-dependencies"], project["dependency-groups"]
    texts = [*project["project"]["dependencies"]]
    for extra in extras:
        texts += optional[extra]
    for group in groups:
        texts += grouped[group]
    return {str(canonicalize_name(Requirement(text).name)) for text in texts} - {"comfyrelay"}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_files_have_versions_and_hashes_and_no_index_url(name: str) -> None:
    lines = [line for line in _text(name).splitlines() if not line.startswith("#")]
    assert all(_PIN.match(line) or re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}( \\)?", line) for line in lines)


def test_lock_files_contain_all_required_packages() -> None:
    desk = _required("desk", "media", "server", "simulator", groups=("build",))
    everything = desk | _required("aws", "kubernetes", "s3", "traces", groups=("bench", "build", "dev"))
    server = _required("alerts", "aws", "kubernetes", "media", "s3", "server", "traces", groups=())
    assert _required("traces", groups=()) <= {name for name, *_ in _pins("worker.txt")}
    assert server <= {name for name, *_ in _pins("server.txt")}
    assert desk <= {name for name, *_ in _pins("desk.txt")}
    assert everything <= {name for name, *_ in _pins("dev.txt")}


@pytest.mark.parametrize("name", ["desk.txt", "server.txt", "worker.txt"])
def test_locked_versions_are_the_tested_versions(name: str) -> None:
    tested = {(name, version) for name, version, _ in _pins("dev.txt")}
    assert {(name, version) for name, version, _ in _pins(name)} <= tested


def test_server_lock_has_no_development_packages() -> None:
    assert {name for name, *_ in _pins("server.txt")} & {"aiohttp", "moto", "pytest", "playwright"} == set()


def test_worker_lock_has_no_server_packages() -> None:
    assert {name for name, *_ in _pins("worker.txt")} & {"asyncpg", "fastapi", "grpcio", "sqlalchemy", "boto3"} == set()
