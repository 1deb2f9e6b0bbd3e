"""`comfyrelay fleet blocks` and `unblock`: workers that are blocked from a workflow because it failed there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from comfyrelay.cli.fleet.databases import with_databases
from comfyrelay.cli.fleet.tables import TableRow, print_table
from comfyrelay.cli.options import Json
from comfyrelay.cli.output import print_json, print_line
from comfyrelay.cli.recorded import recorded

if TYPE_CHECKING:
    from comfyrelay.domain.records.workers import WorkerBlock
    from comfyrelay.services.engine import Engine

BY_COMMAND = "command line"


def blocks(as_json: Json = False) -> None:
    """List workers that are blocked from a workflow because it failed there, with the reason and the end of each
    block."""

    async def work(engine: Engine) -> list[WorkerBlock]:
        return await engine.workers.views.blocks()

    found = with_databases(work)
    if as_json:
        print_json([asdict(block) for block in found])
    elif not found:
        print_line("No worker is blocked.")
    else:
        print_table(("worker", "workflow", "failures", "until (UTC)"), [_row(block) for block in found])


def unblock(
    worker: Annotated[str, typer.Argument(help="Id of the worker.")],
    workflow: Annotated[
        str | None, typer.Option(help="Only this workflow: its slug or hash from `fleet blocks`.")
    ] = None,
) -> None:
    """Let a worker get jobs of blocked workflows again."""

    async def work(engine: Engine) -> int:
        async with recorded(engine, "fleet unblock", "workers", worker_id=worker):
            return await unblocked(engine)

    async def unblocked(engine: Engine) -> int:
        if workflow is None:
            return await engine.workers.workers.unblock(worker, by=BY_COMMAND)
        hashes = [
            block.workflow_hash
            for block in await engine.workers.views.blocks()
            if block.worker_id == worker
            and (block.workflow_slug == workflow or block.workflow_hash.startswith(workflow))
        ]
        return sum(
            [await engine.workers.workers.unblock(worker, workflow_hash=hash_, by=BY_COMMAND) for hash_ in hashes]
        )

    count = with_databases(work)
    print_line(f"{worker}: {count} workflow{'' if count == 1 else 's'} unblocked")


def _row(block: WorkerBlock) -> TableRow:
    until = f"{block.blocked_until:%Y-%m-%d %H:%M:%S}"
    cells = (block.worker_id, block.workflow_slug or block.workflow_hash[:12], str(block.failure_count), until)
    return TableRow(cells, notes=[block.reason] if block.reason else [])
