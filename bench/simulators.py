"""Simulators in a separate process, so that they do not share an event loop with the measured code."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from comfyrelay.simulator import Simulator


@asynccontextmanager
async def simulators(count: int) -> AsyncIterator[list[str]]:
    """Start simulators and yield their URLs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.simulators",
        str(count),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield [(await process.stdout.readline()).decode().strip() for _ in range(count)]
    finally:
        # they exit when their standard input closes, even if this process is killed
        process.stdin.close()
        await process.wait()


async def serve(count: int) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(count):
            print((await stack.enter_async_context(Simulator())).url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
