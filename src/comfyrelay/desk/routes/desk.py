"""Information about the desk for its page."""

import asyncio
from pathlib import Path

from fastapi import FastAPI, Request

from comfyrelay import __version__
from comfyrelay.comfyui.processes import state_files
from comfyrelay.comfyui.processes.log import last_lines_in
from comfyrelay.configuration import config_path
from comfyrelay.desk.routes import batches, embedded_workflow, estimates, gallery, page, scripts, sessions
from comfyrelay.desk.scripts.workflow import SLUG
from comfyrelay.desk.state import DeskState
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import (
    CheckResults,
    ComfyuiProcess,
    ComfyuiProcesses,
    DeskInfo,
    Notifications,
)
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router

router = Router(prefix="/api/desk", tags=["desk"])
ROUTERS = (*(each.router for each in (embedded_workflow, estimates, batches, gallery, page, scripts, sessions)), router)


def add_desk_routes(app: FastAPI, state: DeskState) -> None:
    app.state.desk = state
    for each in ROUTERS:
        app.include_router(each)


@router.get("/checks", responses=error_responses(401))
async def checks(request: Request, _user: CurrentUser) -> Answer[CheckResults]:
    """Run the checks of `comfyrelay doctor` for this desk. That takes a moment."""
    state: DeskState = request.app.state.desk
    found = [each async for each in state.examine()]
    path = config_path()
    return Answer(data=CheckResults.of(configuration=path.absolute() if path else None, items=found))


@router.get("/comfyui", responses=error_responses(401))
async def comfyui(request: Request, _user: CurrentUser) -> Answer[ComfyuiProcesses]:
    """Managed ComfyUI processes, with their last output."""
    state: DeskState = request.app.state.desk
    return Answer(data=ComfyuiProcesses(items=await asyncio.to_thread(_started, state.data_dir)))


def _started(data_dir: Path) -> list[ComfyuiProcess]:
    return [
        ComfyuiProcess.of(note, state=note.state_now, log=path, lines=last_lines_in(path))
        for note, path in state_files.find(data_dir / "worker")
    ]


@router.get("", responses=error_responses(401))
async def desk(request: Request, _user: CurrentUser) -> Answer[DeskInfo]:
    """Describe this desk."""
    state: DeskState = request.app.state.desk
    notifications = Notifications.of(urls=state.notify_urls, on=state.notify_on, not_sent=list(state.not_sent))
    script = SLUG if state.script is not None else None
    return Answer(data=DeskInfo.of(state, version=__version__, script_workflow=script, notifications=notifications))
