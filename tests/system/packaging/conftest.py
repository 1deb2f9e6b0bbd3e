"""The wheel and each kind of environment are built once per test run."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.environments import Environment, Wheel, build_wheel


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "packaging"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Wheel:
    with _one_at_a_time(shared):
        return build_wheel(shared / "wheel")


@pytest.fixture(scope="session")
def base(shared: Path, wheel: Wheel) -> Environment:
    with _one_at_a_time(shared):
        return Environment(shared / "base", wheel)


@pytest.fixture(scope="session")
def server(shared: Path, wheel: Wheel) -> Environment:
    with _one_at_a_time(shared):
        return Environment(shared / "server", wheel, "server")


@pytest.fixture(scope="session")
def desk(shared: Path, wheel: Wheel) -> Environment:
    with _one_at_a_time(shared):
        return Environment(shared / "desk", wheel, "desk")


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
