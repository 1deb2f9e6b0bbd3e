"""Fleet operations of commands, on the databases of a server or over its admin API from another machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from comfyrelay.cli.fleet.databases import with_databases
from comfyrelay.cli.options import url_option
from comfyrelay.domain.queue.states import Stage

if TYPE_CHECKING:
    from comfyrelay.protocol.admin.autoscaling import Decision, FleetAutoscalingStatus, MachineInHistory
    from comfyrelay.protocol.admin.fleets import Fleet
    from comfyrelay.services.engine import Engine

T = TypeVar("T")
ServerUrl = Annotated[
    str | None,
    url_option(
        "URL of a server: use its admin API, with an administrator's token in COMFYRELAY_TOKEN. Default: the "
        "databases of the settings."
    ),
]


class FleetOperations(Protocol):
    async def scaled(self) -> Sequence[tuple[Stage, str]]:
        """Return the stage and slug of every autoscaled fleet."""

    async def status(self, stage: Stage, slug: str) -> FleetAutoscalingStatus: ...

    async def decisions(self, stage: Stage, slug: str, *, limit: int) -> Sequence[Decision]: ...

    async def ended_machines(self, stage: Stage, slug: str, *, limit: int) -> Sequence[MachineInHistory]: ...

    async def set_paused(self, stage: Stage, slug: str, *, is_paused: bool) -> None: ...

    async def reset_launches(self, stage: Stage, slug: str) -> None: ...

    async def get(self, stage: Stage, slug: str) -> Fleet: ...

    async def create(self, fields: Mapping[str, Any]) -> Fleet: ...

    async def change(self, stage: Stage, slug: str, fields: Mapping[str, Any]) -> Fleet: ...

    async def map_workflows(self, stage: Stage, slug: str, workflows: Sequence[str]) -> Fleet: ...


def operate(url: str | None, work: Callable[[FleetOperations], Awaitable[T]]) -> T:
    """Run `work` over the admin API of the server at `url`; without a `url`, on the databases of the settings."""
    if url is None:
        return with_databases(lambda engine: _in_databases(engine, work))
    return asyncio.run(_over_http(url, work))


async def _in_databases(engine: Engine, work: Callable[[FleetOperations], Awaitable[T]]) -> T:
    from comfyrelay.cli.fleet.access import FleetsInDatabases

    return await work(FleetsInDatabases(engine))


async def _over_http(url: str, work: Callable[[FleetOperations], Awaitable[T]]) -> T:
    from comfyrelay.cli.fleet.access import FleetsOverHttp
    from comfyrelay.client.calls import Calls

    calls = Calls(url, token=os.environ.get("COMFYRELAY_TOKEN"))
    try:
        return await work(FleetsOverHttp(calls))
    finally:
        await calls.close()
