"""Commands forked by tests can be signalled like any process."""

import asyncio
import socket
import sys

from tests.support.forked_commands import ForkedProcess


async def test_ended_child_can_still_be_signalled() -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    ours, monitor = socket.socketpair()
    ours.setblocking(False)
    with monitor:
        child = ForkedProcess(ended.pid, ours)
        child.kill()
        assert child.returncode is None
        monitor.sendall((7).to_bytes(4, sys.byteorder))
        assert await child.wait() == 7
