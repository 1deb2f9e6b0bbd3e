"""What only a desk serves: its page, and what the page must know about the machine."""

from datetime import datetime

from fastapi import APIRouter, FastAPI, Request

from comfyrelay import __version__
from comfyrelay.desk.notifications.notifier import Occasion
from comfyrelay.desk.routes import batches, graphs, page, scripts
from comfyrelay.desk.scripts.workflow import SLUG
from comfyrelay.desk.state import DeskState
from comfyrelay.server.base.answers import Answer, Body
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.problems import may_answer
from comfyrelay.web import desk as page_files

__all__ = ["add_desk_routes"]

router = APIRouter(prefix="/api/desk", tags=["desk"])


class NotSentBody(Body):
    """A notification that did not arrive."""

    at: datetime
    url: str
    why: str


class NotificationsBody(Body):
    """`urls` are without their secrets; `not_sent` has the last that did not arrive."""

    urls: list[str]
    on: list[Occasion]
    not_sent: list[NotSentBody]


class DeskBody(Body):
    version: str
    comfyui: list[str]
    is_stand_in: bool
    data_dir: str
    input_folder: str
    output_folder: str
    # the workflow that runs the user's own script, where one is configured
    script_workflow: str | None
    notifications: NotificationsBody


def add_desk_routes(app: FastAPI, state: DeskState) -> None:
    app.state.desk = state
    for each in (graphs, batches, page, scripts, page_files):
        app.include_router(each.router)
    app.include_router(router)


@router.get("", responses=may_answer(401))
async def desk(request: Request, _user: CurrentUser) -> Answer[DeskBody]:
    """What this desk is made of."""
    state: DeskState = request.app.state.desk
    return Answer(
        data=DeskBody(
            version=__version__,
            comfyui=state.comfyui,
            is_stand_in=state.is_stand_in,
            data_dir=str(state.data_dir),
            input_folder=str(state.input_folder),
            output_folder=str(state.output_folder),
            script_workflow=SLUG if state.script is not None else None,
            notifications=NotificationsBody(
                urls=list(state.notify_urls),
                on=list(state.notify_on),
                not_sent=[NotSentBody(at=each.at, url=each.url, why=each.why) for each in state.not_sent],
            ),
        )
    )
