"""Models that a form field can name, with their pictures and trigger words."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Query, Request, Response

from comfyrelay.comfyui.client.trigger_words import model_title, trigger_words
from comfyrelay.desk.models.browser import ModelBrowser, model_field
from comfyrelay.desk.state import DeskStateOf
from comfyrelay.domain.properties import Property
from comfyrelay.protocol import desk_models as wire
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.protocol.fields import Key, Slug
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.guests import is_guest
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.server.operations.files import FILE_HEADERS, POSTER_CACHE

router = Router(prefix="/api/desk/models", tags=["desk"])
ModelName = Annotated[str, Query(min_length=1, max_length=1000)]


async def _field(
    *,
    field: Key,
    request: Request,
    context: ContextOf,
    user: CurrentUser,
    workflow_slug: Slug | None = None,
    effect_slug: Slug | None = None,
) -> Property:
    """Return the field of a form that the caller may use."""
    engine = context.engine
    effect_id = (await engine.catalogue.effects.get(effect_slug)).effect.id if effect_slug else None
    target = await engine.jobs.resolve.find_target(
        user.tenant_id, effect_id=effect_id, workflow_slug=workflow_slug, is_guest=is_guest(request)
    )
    return model_field(target.properties, field)


async def _browser(request: Request, state: DeskStateOf) -> ModelBrowser:
    browser: ModelBrowser | None = getattr(request.app.state, "model_browser", None)
    if browser is None:
        browser = request.app.state.model_browser = ModelBrowser(state.find_comfyui)
    return browser


Field = Annotated[Property, Depends(_field)]
BrowserOf = Annotated[ModelBrowser, Depends(_browser)]


@router.get("", responses=error_responses(401, 404, 422, 503))
async def models(field: Field, browser: BrowserOf, _user: CurrentUser) -> Answer[Items[wire.Model]]:
    """Return the models that a field offers. ComfyUI servers that do not answer are skipped."""
    return Answer(
        data=Items(
            items=[
                wire.Model.of(file, modified_at=file.modified_at and datetime.fromtimestamp(file.modified_at, UTC))
                for file in await browser.files(field)
            ]
        )
    )


@router.get(
    "/picture",
    response_class=Response,
    responses={200: {"description": "An image", "content": {"image/webp": {}}}, **error_responses(401, 404, 422, 503)},
)
async def picture(name: ModelName, field: Field, browser: BrowserOf, _user: CurrentUser) -> Response:
    """Return the picture next to a model file."""
    found = await browser.picture(field, name)
    headers = {**FILE_HEADERS, "Cache-Control": POSTER_CACHE}
    return Response(found.content, media_type=found.media_type, headers=headers)


@router.get("/metadata", responses=error_responses(401, 404, 422, 503))
async def metadata(name: ModelName, field: Field, browser: BrowserOf, _user: CurrentUser) -> Answer[wire.ModelMetadata]:
    """Return the title and the trigger words in a model file."""
    found = await browser.metadata(field, name)
    return Answer(data=wire.ModelMetadata(title=model_title(found), trigger_words=trigger_words(found)))
