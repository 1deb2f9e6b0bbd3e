"""A unit test that opens a socket or starts a process fails."""

import multiprocessing.process
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest


class NotAUnitTest(AssertionError):
    """This test belongs in tests/integration or tests/system."""


@pytest.fixture(autouse=True)
def violations() -> Iterator[list[str]]:
    """Refuse actions that a unit test must not take, and collect them in case the code catches exceptions."""
    found: list[str] = []

    def forbid(action: str) -> Callable[..., NoReturn]:
        def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
            found.append(action)
            raise NotAUnitTest(f"This unit test {action}: move it to tests/integration or tests/system.")

        return refuse

    with pytest.MonkeyPatch.context() as patch:
        for name in ("bind", "connect", "connect_ex"):
            patch.setattr(socket.socket, name, forbid("opens a socket"))
        patch.setattr(subprocess.Popen, "__init__", forbid("starts a process"))
        patch.setattr(multiprocessing.process.BaseProcess, "start", forbid("starts a process"))
        patch.setattr(os, "fork", forbid("starts a process"))
        yield found
    if found:
        raise NotAUnitTest(f"This unit test {found[0]}: move it to tests/integration or tests/system.")
