"""Create page sessions: with a one-time link, or with the password."""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Body, Query, Request, Response, status

from comfyrelay.desk.one_time_links import LINK_SECONDS, PATH
from comfyrelay.desk.state import DeskStateOf
from comfyrelay.errors import TooManyRequests
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import Link
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.bodies import BodyRoute, anonymous_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.limits import address_of
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.user.accounts import begin_session
from comfyrelay.web.session_pages import SIGN_IN_PATH, closed_page, opened_page, sign_in_page

router = APIRouter(route_class=BodyRoute)
WRONG = "The password is wrong."
TOO_MANY = "Too many attempts. Wait a minute, then try again."


@router.post("/api/desk/links", tags=["desk"], status_code=status.HTTP_201_CREATED, responses=error_responses(401, 403))
async def add_link(state: DeskStateOf, _user: CurrentUser) -> Answer[Link]:
    """Create a link that opens the page once."""
    return Answer(data=Link(url=state.links.make(), seconds=int(LINK_SECONDS)), message="The link works once.")


@router.get(PATH, include_in_schema=False)
async def follow_link(
    request: Request, state: DeskStateOf, context: ContextOf, link: Annotated[str, Query(max_length=100)] = ""
) -> Response:
    """Create a session for a valid link."""
    assert context.owner is not None
    if not state.links.redeem(link):
        user = await context.user_of(request.cookies.get(context.session_cookie, ""))
        # The browser that used the link may open it again.
        return opened_page() if user is not None and user.id == context.owner.user.id else closed_page()
    return await _start_session(request, context)


@router.post(SIGN_IN_PATH, include_in_schema=False)
@anonymous_body
async def sign_in(
    body: Annotated[bytes, Body(media_type="application/x-www-form-urlencoded")],
    request: Request,
    state: DeskStateOf,
    context: ContextOf,
) -> Response:
    """Create a session for the correct password."""
    if state.password is None:
        return closed_page()
    try:
        session = await state.password.session_for(_password_in(body), address=address_of(request))
    except TooManyRequests as error:
        return sign_in_page(TOO_MANY, status_code=429, headers={"Retry-After": str(int(error.retry_after_seconds) + 1)})
    return sign_in_page(WRONG) if session is None else await _start_session(request, context, session)


def _password_in(body: bytes) -> str:
    try:
        return parse_qs(body.decode(), strict_parsing=True, max_num_fields=1)["password"][0]
    except (ValueError, KeyError):
        return ""


async def _start_session(request: Request, context: Context, session: str = "session") -> Response:
    assert context.owner is not None
    # After a cross-site navigation, browsers withhold strict cookies from a redirect.
    response = opened_page()
    is_secure = request.url.scheme == "https"
    await begin_session(context, context.owner.user, response, samesite="strict", name=session, is_secure=is_secure)
    return response
