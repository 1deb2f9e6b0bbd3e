"""The guard of the unit tests (conftest.py)."""

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys

import pytest

from tests.unit.conftest import NotAUnitTest


def test_socket_is_refused(violations: list[str]) -> None:
    with pytest.raises(NotAUnitTest, match="opens a socket: move it to tests/integration"):
        socket.create_connection(("127.0.0.1", 9))
    with pytest.raises(NotAUnitTest, match="opens a socket"):
        socket.create_server(("127.0.0.1", 0))
    assert violations == ["opens a socket"] * 2
    violations.clear()


async def test_socket_of_an_event_loop_is_refused(violations: list[str]) -> None:
    with pytest.raises(NotAUnitTest, match="opens a socket"):
        await asyncio.open_connection("127.0.0.1", 9)
    violations.clear()


async def test_process_is_refused(violations: list[str]) -> None:
    with pytest.raises(NotAUnitTest, match="starts a process"):
        subprocess.run([sys.executable, "-c", ""], check=True)  # noqa: ASYNC221
    with pytest.raises(NotAUnitTest, match="starts a process"):
        await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    with pytest.raises(NotAUnitTest, match="starts a process"):
        multiprocessing.Process(target=print).start()
    with pytest.raises(NotAUnitTest, match="starts a process"):
        os.fork()
    assert len(violations) == 4
    violations.clear()
