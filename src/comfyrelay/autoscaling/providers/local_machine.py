"""The process of a `local` machine: it holds the machine's folder and runs a ComfyUI and a worker.

python -m comfyrelay.autoscaling.providers.local_machine FOLDER

If one of them exits, or this process is asked to stop, all stop; if it is killed, their launchers stop them. The
worker's settings are in the environment, so that no secret is in a file.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from comfyrelay.errors import ConfigurationError
from comfyrelay.http_client import free_port
from comfyrelay.system import files
from comfyrelay.system.atomic import write_new
from comfyrelay.system.commands import detached
from comfyrelay.system.commands.contained import launch
from comfyrelay.system.folder_lock import FolderLock
from comfyrelay.system.signals import on_stop

# A reader that checks the lock holds it for a moment.
LOCK_TRIES = 20
LOOK_SECONDS = 0.2
ANSWER_SECONDS = 5.0
COMFYUI_GRACE_SECONDS = 5.0
_FOLDERS = ("comfyui", "worker")
# It is on this host or close to it.
_OPENER = build_opener(ProxyHandler({}))


async def main(folder: Path) -> None:
    stop = asyncio.Event()
    with on_stop(lambda _number: stop.set()):
        lock = FolderLock(folder)
        if not _is_taken(lock, folder):
            _print("Another process is this machine.")
            return
        this = {"pid": os.getpid(), "started": detached.started_at()}
        if not write_new(folder / "begun.json", json.dumps(this).encode()):
            _print("This machine was there before, and is not started again.")
            return
        # in this order: a termination before the start leaves this file, a later one sends a signal
        if (folder / "ended").exists():
            _print("It was ended before it began.")
            return
        try:
            await _run(folder, json.loads((folder / "order.json").read_text("utf-8")), stop)
        finally:
            for each in _FOLDERS:
                with suppress(OSError):
                    files.remove_tree(folder / each)
            lock.release()


def _is_taken(lock: FolderLock, folder: Path) -> bool:
    for _ in range(LOCK_TRIES):
        if (folder / "begun.json").exists():
            return False
        with suppress(ConfigurationError):
            lock.acquire(advice="")
            return True
    return False


async def _run(folder: Path, order: Mapping[str, Any], stop: asyncio.Event) -> None:
    port = free_port()
    url = order["comfyui_url"] or f"http://127.0.0.1:{port}"
    work = folder / "comfyui"
    work.mkdir(exist_ok=True)
    environment = {**os.environ, "COMFYUI_BASE_URL": url}
    comfyui = worker = None
    stopping = asyncio.create_task(stop.wait())
    try:
        if order["comfyui"] is not None:
            words = [each.replace("{port}", str(port)).replace("{folder}", str(work)) for each in order["comfyui"]]
            # the worker's settings are hidden from ComfyUI's nodes
            plain = {name: value for name, value in environment.items() if name != "FLEET_SECRET"}
            comfyui = await _start("comfyui", words, folder, plain, COMFYUI_GRACE_SECONDS)
        # starts in parallel, because it waits for ComfyUI itself
        worker = await _start("worker", order["worker"], folder, environment, order["grace_seconds"])
        answering = asyncio.create_task(_until_answering(url, folder, order["answer_seconds"]))
        ends = {asyncio.create_task(each.wait(), name=name) for name, each in _named(comfyui, worker)}
        booted, _ = await asyncio.wait({stopping, answering, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if answering in booted and answering.result():
            await asyncio.wait({stopping, *ends}, return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        for end in ends:
            if end.done():
                _print(f"The {end.get_name()} has ended ({end.result()}).")
    finally:
        # the worker first: it requeues or finishes its jobs, and needs ComfyUI for that
        for _, process in reversed(_named(comfyui, worker)):
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()
        stopping.cancel()


def _named(comfyui: Process | None, worker: Process | None) -> list[tuple[str, Process]]:
    return [(name, each) for name, each in (("ComfyUI", comfyui), ("worker", worker)) if each is not None]


async def _start(
    name: str, argv: Sequence[str], folder: Path, environment: Mapping[str, str], grace_seconds: float
) -> Process:
    with (folder / f"{name}.log").open("ab") as log:
        return await launch(argv, folder=folder, environment=environment, grace_seconds=grace_seconds, output=log)


async def _until_answering(url: str, folder: Path, seconds: float) -> bool:
    """Wait until ComfyUI answers; then the machine counts as running."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(_answers, url):  # noqa: ASYNC110  (ComfyUI sends no event)
                await asyncio.sleep(LOOK_SECONDS)
            (folder / "running").touch()
            return True
    _print(f"ComfyUI did not answer at {url} within {seconds:g} s.")
    return False


def _answers(url: str) -> bool:
    try:
        with _OPENER.open(f"{url.rstrip('/')}/system_stats", timeout=ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError, ValueError):
        return False


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
