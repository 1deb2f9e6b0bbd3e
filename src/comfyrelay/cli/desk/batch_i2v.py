"""`comfyrelay batch-i2v`: run a graph on a folder, with the options that a desk passes to scripts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from comfyrelay.cli.options import parse_assignment
from comfyrelay.errors import ComfyRelayError, InvalidInput
from comfyrelay.system.signals import on_stop

FAILED = 1
CANNOT_RUN = 2


def batch_i2v(
    template_api: Annotated[Path, typer.Option(help="Graph in ComfyUI's API format.")],
    input_subdir: Annotated[str, typer.Option(help="Folder with the inputs, inside --input-root.")],
    positive: Annotated[str, typer.Option(help="Prompt.")],
    negative: Annotated[str | None, typer.Option(help="Negative prompt. Default: from the template.")] = None,
    profile: Annotated[
        str, typer.Option(help="look-dev, medium or production: which share of the template's steps to run.")
    ] = "production",
    tries: Annotated[int, typer.Option(help="Runs per input.", min=1, max=1000)] = 1,
    seed: Annotated[
        int | None, typer.Option(help="First seed. Default: from the template.", min=0, max=2**64 - 1)
    ] = None,
    randomize_seed: Annotated[bool, typer.Option("--randomize-seed", help="Draw a new seed for each run.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for each run and save its files. Default: only queue them.")
    ] = False,
    input_root: Annotated[Path, typer.Option(help="Parent folder of --input-subdir.")] = Path(),
    out: Annotated[Path, typer.Option(help="Folder for saved files.")] = Path("output"),
    change: Annotated[
        list[str] | None, typer.Option("--set", help="NODE.INPUT=VALUE, the node by id or title. Repeatable.")
    ] = None,
    server: Annotated[
        str, typer.Option(envvar="COMFYUI_BASE_URL", help="URL of ComfyUI. Of several, the first is used.")
    ] = "http://127.0.0.1:8188",
) -> None:
    """Run a graph on every image or video of a folder, on any ComfyUI.

    The exit code is 1 if a run failed.
    """
    from comfyrelay.comfyui import ComfyClient
    from comfyrelay.desk.scripts.batch_i2v import BatchOptions, run_batch

    options = BatchOptions(
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
        changes=dict(_change(text) for text in change or ()),
    )
    printer = _Printer()

    async def run() -> int:
        async with ComfyClient(server.partition(",")[0]) as comfy:
            # A file or pipe gets no carriage returns.
            write_temporary = printer.write_temporary if sys.stdout.isatty() else None
            return await run_batch(comfy, options, write=printer.write, write_temporary=write_temporary)

    try:
        failed, signal_number = asyncio.run(_until_signal(run()))
    except ComfyRelayError as error:
        # Use the same stream as for all other lines, so that the order is kept.
        printer.write(f"Error: {error}")
        raise typer.Exit(CANNOT_RUN) from None
    finally:
        printer.finish()
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)
    if failed:
        raise typer.Exit(FAILED)


async def _until_signal(work: Any) -> tuple[int, int | None]:
    """Run until the end, or cancel on Ctrl-C or SIGTERM. Returns the number of failed runs, and the signal."""
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
    """Prints lines, and progress lines that the next line replaces."""

    def __init__(self) -> None:
        self._is_open = False

    def write(self, text: str) -> None:
        self.finish()
        print(text, flush=True)

    def write_temporary(self, text: str) -> None:
        # \x1b[K clears the rest of a longer line.
        print(f"\r{text}\x1b[K", end="", flush=True)
        self._is_open = True

    def finish(self) -> None:
        if self._is_open:
            print(flush=True)
        self._is_open = False


def _change(text: str) -> tuple[tuple[str, str], Any]:
    place, value = parse_assignment(text, form="NODE.INPUT=VALUE")
    node, _, name = place.rpartition(".")
    if not (node and name):
        raise InvalidInput(f"Write NODE.INPUT=VALUE, not {text!r}.")
    return (node, name), value
