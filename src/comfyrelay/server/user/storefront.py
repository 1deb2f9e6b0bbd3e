"""Content for visitors before they sign in: the logo, and the effects of a server that is open to everyone."""

from fastapi import Response

from comfyrelay.errors import NotFound
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Limit, NumberCursor, Router, page_of
from comfyrelay.services.catalogue.library import OfferedEffect

router = Router(prefix="/api", tags=["account"])
# An SVG may contain scripts, which must not run if someone opens the file.
LOGO_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cache-Control": "public, max-age=86400",
}


@router.get("/catalogue", responses=error_responses(404, 422, 503))
async def catalogue(
    context: ContextOf, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.PublicEffect]]:
    """List the active effects for visitors, if everyone may create an account."""
    if context.owner is not None or context.settings.sign_up != "open":
        raise NotFound("Sign in to see the effects of this server.")
    page = await context.engine.catalogue.library.effects(after_id=cursor or 0, limit=limit)
    return page_of(page, _effect)


@router.get("/logo", response_class=Response, responses=error_responses(404))
async def logo(context: ContextOf) -> Response:
    """Get the logo of the operator."""
    if context.logo is None:
        raise NotFound("No logo is set.")
    return Response(context.logo.content, media_type=context.logo.media_type, headers=LOGO_HEADERS)


def _effect(offered: OfferedEffect) -> wire.PublicEffect:
    return wire.PublicEffect.of(offered, offered.effect)
