"""`comfyrelay batch-i2v`: the script contract, for any ComfyUI."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from comfyrelay.errors import ComfyRelayError, InvalidInput
from comfyrelay.system.signals import on_stop

FAILED = 1
CANNOT = 2


def batch_i2v(
    template_api: Annotated[Path, typer.Option(help="The graph, in ComfyUI's API format.")],
    input_subdir: Annotated[str, typer.Option(help="The folder with the inputs, in the input root.")],
    positive: Annotated[str, typer.Option(help="The prompt.")],
    negative: Annotated[str | None, typer.Option(help="The negative prompt. Default: that of the template.")] = None,
    profile: Annotated[
        str, typer.Option(help="look-dev, medium or production: the share of the template's steps.")
    ] = "production",
    tries: Annotated[int, typer.Option(help="Runs of each input.", min=1, max=1000)] = 1,
    seed: Annotated[
        int | None, typer.Option(help="The first seed. Default: that of the template.", min=0, max=2**64 - 1)
    ] = None,
    randomize_seed: Annotated[bool, typer.Option("--randomize-seed", help="A new seed for each run.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for each run and save its files, or only queue.")] = False,
    input_root: Annotated[Path, typer.Option(help="The parent folder of --input-subdir.")] = Path(),
    out: Annotated[Path, typer.Option(help="The folder for saved files.")] = Path("output"),
    change: Annotated[
        list[str] | None, typer.Option("--set", help="NODE.INPUT=VALUE, by id or title. Repeat for more.")
    ] = None,
    server: Annotated[
        str, typer.Option(envvar="COMFYUI_BASE_URL", help="The URL of ComfyUI; of several, the first is used.")
    ] = "http://127.0.0.1:8188",
) -> None:
    """Run a graph on every image or video of a folder, on any ComfyUI; exit code 1 if a run failed."""
    from comfyrelay.comfyui import ComfyClient
    from comfyrelay.desk.scripts.batch_i2v import Order, run_batch

    order = Order(
        template=template_api,
        input_root=input_root,
        input_subdir=input_subdir,
        positive=positive,
        negative=negative,
        profile=profile,
        tries=tries,
        seed=seed,
        randomize_seed=randomize_seed,
        wait=wait,
        out=out,
        changes=dict(_change(each) for each in change or ()),
    )
    printer = _Printer()

    async def run() -> int:
        async with ComfyClient(server.partition(",")[0]) as comfy:
            # no carriage returns in a file or pipe
            briefly = printer.write_briefly if sys.stdout.isatty() else None
            return await run_batch(comfy, order, write=printer.write, write_briefly=briefly)

    try:
        failed, signal_number = asyncio.run(_until_signal(run()))
    except ComfyRelayError as error:
        # to the same stream as everything else, so that the order is kept
        printer.write(f"Error: {error}")
        raise typer.Exit(CANNOT) from None
    finally:
        printer.finish()
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)
    if failed:
        raise typer.Exit(FAILED)


async def _until_signal(work: Any) -> tuple[int, int | None]:
    """Run until the end, Ctrl-C or SIGTERM, which also stops the run on the server."""
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    with on_stop(stop):
        try:
            return await task, None
        except asyncio.CancelledError:
            if not received:
                raise
            return 0, received[0]


class _Printer:
    """Print lines, and progress lines that the next one replaces."""

    def __init__(self) -> None:
        self._is_open = False

    def write(self, text: str) -> None:
        self.finish()
        print(text, flush=True)

    def write_briefly(self, text: str) -> None:
        # \x1b[K: clear what is left of a longer line
        print(f"\r{text}\x1b[K", end="", flush=True)
        self._is_open = True

    def finish(self) -> None:
        if self._is_open:
            print(flush=True)
        self._is_open = False


def _change(text: str) -> tuple[tuple[str, str], Any]:
    """`NODE.INPUT=VALUE`. Valid JSON is parsed: 20 is a number."""
    place, equals, value = text.partition("=")
    node, _, name = place.rpartition(".")
    if not (equals and node and name):
        raise InvalidInput(f"Write NODE.INPUT=VALUE, not {text!r}.")
    try:
        return (node, name), json.loads(value)
    except ValueError:
        return (node, name), value
