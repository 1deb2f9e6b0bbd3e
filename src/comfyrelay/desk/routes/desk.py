"""Describe the desk for its page."""

import asyncio

from fastapi import Request

from comfyrelay import __version__
from comfyrelay.comfyui.processes import state_files
from comfyrelay.comfyui.processes.log import last_lines_in
from comfyrelay.desk.scripts.workflow import SLUG
from comfyrelay.desk.state import DeskStateOf
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.protocol.desk import (
    CheckResults,
    ComfyuiProcess,
    DeskInfo,
    Notifications,
)
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.guests import is_guest
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router

router = Router(prefix="/api/desk", tags=["desk"])


@router.get("/checks", responses=error_responses(401))
async def checks(state: DeskStateOf, _user: CurrentUser) -> Answer[CheckResults]:
    """Run the checks of `comfyrelay doctor` for this desk. This takes a moment."""
    found = [result async for result in state.examine()]
    path = state.live.file
    return Answer(data=CheckResults.of(configuration=path if path.is_file() else None, items=found))


@router.get("/comfyui", responses=error_responses(401))
async def comfyui(state: DeskStateOf, _user: CurrentUser) -> Answer[Items[ComfyuiProcess]]:
    """Return the managed ComfyUI processes with their last output."""

    def processes() -> list[ComfyuiProcess]:
        return [
            ComfyuiProcess.of(note, state=note.state_now, log=path, lines=last_lines_in(path))
            for note, path in state_files.find(state.data_dir / "worker")
        ]

    return Answer(data=Items(items=await asyncio.to_thread(processes)))


@router.get("", responses=error_responses(401))
async def desk(request: Request, state: DeskStateOf, _user: CurrentUser) -> Answer[DeskInfo]:
    """Describe this desk."""
    notifications = Notifications.of(urls=state.notify_urls, on=state.notify_on, not_sent=list(state.not_sent))
    script = SLUG if state.script is not None else None
    return Answer(
        data=DeskInfo.of(
            state,
            version=__version__,
            script_workflow=script,
            notifications=notifications,
            is_guest=is_guest(request),
        )
    )
