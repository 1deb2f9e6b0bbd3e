"""What only a desk serves: its page, and what the page must know about the machine."""

from fastapi import APIRouter, FastAPI, Request

from comfyrelay import __version__
from comfyrelay.desk.routes import batches, carried, opening, page, scripts
from comfyrelay.desk.scripts.workflow import SLUG
from comfyrelay.desk.state import DeskState
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import Desk, Notifications
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.bodies import BodyRoute
from comfyrelay.server.base.problems import may_answer
from comfyrelay.web import desk as page_files

router = APIRouter(prefix="/api/desk", tags=["desk"], route_class=BodyRoute)
ROUTERS = (*(each.router for each in (carried, batches, page, scripts, opening, page_files)), router)


def add_desk_routes(app: FastAPI, state: DeskState) -> None:
    app.state.desk = state
    for each in ROUTERS:
        app.include_router(each)


@router.get("", responses=may_answer(401))
async def desk(request: Request, _user: CurrentUser) -> Answer[Desk]:
    """What this desk is made of."""
    state: DeskState = request.app.state.desk
    notifications = Notifications.of(urls=state.notify_urls, on=state.notify_on, not_sent=list(state.not_sent))
    script = SLUG if state.script is not None else None
    return Answer(data=Desk.of(state, version=__version__, script_workflow=script, notifications=notifications))
