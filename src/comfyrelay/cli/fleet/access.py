"""Run fleet operations on the databases of a server, or over its admin API. Imported only when a command runs."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from comfyrelay.cli.recorded import recorded
from comfyrelay.client.calls import Calls
from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.admin.autoscaling import Decision, FleetAutoscalingStatus, MachineInHistory
from comfyrelay.protocol.admin.fleets import Fleet, FleetMapping, FleetPatch, NewFleet
from comfyrelay.protocol.base import checked

if TYPE_CHECKING:
    # Commands over HTTP run without the libraries of a server.
    from comfyrelay.services.auditing import ChangeScope
    from comfyrelay.services.engine import Engine

FLEETS = "/api/admin/fleets"


class FleetsOverHttp:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def scaled(self) -> Sequence[tuple[Stage, str]]:
        return [
            (Stage(fleet.stage), fleet.slug)
            async for fleet in self._calls.pages(FLEETS, Fleet)
            if fleet.machines is not None or fleet.autoscaling is not None
        ]

    async def status(self, stage: Stage, slug: str) -> FleetAutoscalingStatus:
        return await self._calls.get(f"{_path(stage, slug)}/autoscaling", FleetAutoscalingStatus)

    async def decisions(self, stage: Stage, slug: str, *, limit: int) -> Sequence[Decision]:
        return await self._first(f"{_path(stage, slug)}/decisions", Decision, limit)

    async def ended_machines(self, stage: Stage, slug: str, *, limit: int) -> Sequence[MachineInHistory]:
        return await self._first(f"{_path(stage, slug)}/machines", MachineInHistory, limit)

    async def set_paused(self, stage: Stage, slug: str, *, is_paused: bool) -> None:
        action = "pause" if is_paused else "resume"
        await self._calls.post(f"{_path(stage, slug)}/{action}", FleetAutoscalingStatus)

    async def reset_launches(self, stage: Stage, slug: str) -> None:
        await self._calls.post(f"{_path(stage, slug)}/reset-launches", FleetAutoscalingStatus)

    async def get(self, stage: Stage, slug: str) -> Fleet:
        return await self._calls.get(_path(stage, slug), Fleet)

    async def create(self, fields: Mapping[str, Any]) -> Fleet:
        return (await self._calls.send(FLEETS, Fleet, NewFleet, **fields)).data

    async def change(self, stage: Stage, slug: str, fields: Mapping[str, Any]) -> Fleet:
        return (await self._calls.patch(_path(stage, slug), Fleet, fields)).data

    async def map_workflows(self, stage: Stage, slug: str, workflows: Sequence[str]) -> Fleet:
        path = f"{_path(stage, slug)}/workflows"
        return (await self._calls.send(path, Fleet, FleetMapping, method="PUT", workflow_slugs=list(workflows))).data

    async def _first(self, path: str, item: type[Any], limit: int) -> Sequence[Any]:
        found: list[Any] = []
        async for entry in self._calls.pages(path, item):
            found.append(entry)
            if len(found) == limit:
                break
        return found


class FleetsInDatabases:
    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._views = engine.autoscaling.views

    async def scaled(self) -> Sequence[tuple[Stage, str]]:
        fleets = await self._engine.autoscaling.snapshots.fleets()
        return [(Stage(fleet.stage), fleet.slug) for fleet in fleets if fleet.is_scaled]

    async def status(self, stage: Stage, slug: str) -> FleetAutoscalingStatus:
        from comfyrelay.server.admin.autoscaling import status_body

        return status_body(await self._views.get(stage, slug))

    async def decisions(self, stage: Stage, slug: str, *, limit: int) -> Sequence[Decision]:
        return [Decision.of(decision) for decision in (await self._views.decisions(stage, slug, limit=limit)).items]

    async def ended_machines(self, stage: Stage, slug: str, *, limit: int) -> Sequence[MachineInHistory]:
        from comfyrelay.server.admin.autoscaling import ended_body

        return [ended_body(ended) for ended in (await self._views.ended_machines(stage, slug, limit=limit)).items]

    async def set_paused(self, stage: Stage, slug: str, *, is_paused: bool) -> None:
        async with self._recorded("pause" if is_paused else "resume", stage, slug):
            await self._views.set_paused(stage, slug, is_paused=is_paused)

    async def reset_launches(self, stage: Stage, slug: str) -> None:
        async with self._recorded("reset", stage, slug):
            await self._views.reset_launches(stage, slug)

    async def get(self, stage: Stage, slug: str) -> Fleet:
        from comfyrelay.server.admin.fleets import fleet_body

        return fleet_body(await self._engine.workers.views.get(stage, slug))

    async def create(self, fields: Mapping[str, Any]) -> Fleet:
        from comfyrelay.server.admin.fleets import check_machines

        body = checked(NewFleet, **fields)
        check_machines(body.machines, before=None)
        async with self._recorded("create", body.stage, body.slug):
            await self._engine.workers.fleets.create(**body.model_dump(exclude_unset=True))
        return await self.get(body.stage, body.slug)

    async def change(self, stage: Stage, slug: str, fields: Mapping[str, Any]) -> Fleet:
        from comfyrelay.server.admin.fleets import check_machines

        body = checked(FleetPatch, **fields)
        before = (await self._engine.workers.views.get(stage, slug)).fleet.machines
        check_machines(body.machines, before=before)
        async with self._recorded("set", stage, slug):
            await self._engine.workers.fleets.change(stage=stage, slug=slug, changes=body.changes())
        return await self.get(stage, slug)

    async def map_workflows(self, stage: Stage, slug: str, workflows: Sequence[str]) -> Fleet:
        async with self._recorded("workflows", stage, slug):
            await self._engine.workers.fleets.map_workflows(stage=stage, slug=slug, workflow_slugs=workflows)
        return await self.get(stage, slug)

    def _recorded(self, command: str, stage: Stage, slug: str) -> AbstractAsyncContextManager["ChangeScope"]:
        return recorded(self._engine, f"fleet {command}", "fleets", stage=stage, slug=slug)


def _path(stage: Stage, slug: str) -> str:
    return f"{FLEETS}/{stage}/{quote(slug, safe='')}"
