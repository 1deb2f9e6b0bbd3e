"""How the page gets its session: by a link that works once."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, status

from comfyrelay.desk.links import LINK_SECONDS, PATH
from comfyrelay.desk.state import DeskState
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import Link
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.user.accounts import begin_session
from comfyrelay.web.desk import closed_page, opened_page

router = APIRouter()


@router.post("/api/desk/links", tags=["desk"], status_code=status.HTTP_201_CREATED, responses=may_answer(401, 403))
async def add_link(request: Request, _user: CurrentUser) -> Answer[Link]:
    """A link that opens the page in a browser, once."""
    state: DeskState = request.app.state.desk
    return Answer(data=Link(url=state.links.make(), seconds=int(LINK_SECONDS)), message="It works once.")


@router.get(PATH, include_in_schema=False)
async def follow_link(
    request: Request, context: ContextOf, link: Annotated[str, Query(max_length=100)] = ""
) -> Response:
    """Begin a session in the browser that follows a link in time."""
    state: DeskState = request.app.state.desk
    assert context.owner is not None
    if not state.links.redeem(link):
        user = await context.user_of(request.cookies.get(context.session_cookie, ""))
        # a link that was followed before, in the browser that it opened
        return opened_page() if user is not None and user.id == context.owner.user.id else closed_page()
    # no redirect: after one that came from elsewhere, as a click in a mail does, a browser withholds a strict cookie
    response = opened_page()
    await begin_session(context, context.owner.user, response, samesite="strict")
    return response
