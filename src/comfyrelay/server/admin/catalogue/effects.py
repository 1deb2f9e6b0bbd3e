"""Effects: a workflow with overrides and a price, offered to users."""

from comfyrelay.protocol.admin import catalogue as wire
from comfyrelay.protocol.admin.fields import DeletedSlug
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Limit, SlugInPath, TextCursor, TextFilter, page_of
from comfyrelay.services.catalogue.effects import EffectView

router = admin_router("/effects")


@router.get("", responses=error_responses(422))
async def list_effects(
    context: ContextOf,
    workflow: TextFilter = None,
    is_active: bool | None = None,
    limit: Limit = 50,
    cursor: TextCursor = None,
) -> Answer[Page[wire.EffectDetails]]:
    """List all effects by slug, including inactive ones."""
    page = await context.engine.catalogue.effects.page(
        workflow_slug=workflow, is_active=is_active, cursor=cursor, limit=limit
    )
    return page_of(page, _body)


@router.post("", status_code=201, responses=error_responses(409, 422))
async def create_effect(body: wire.NewEffect, context: ContextOf) -> Answer[wire.EffectDetails]:
    """Offer a workflow to users at a price."""
    effect = await context.engine.catalogue.effects.create(**body.model_dump())
    view = await context.engine.catalogue.effects.add_urls(EffectView(effect=effect, workflow_slug=body.workflow_slug))
    return Answer(data=_body(view), message="Created.")


@router.get("/{slug}", responses=error_responses(404, 422))
async def get_effect(slug: SlugInPath, context: ContextOf) -> Answer[wire.EffectDetails]:
    return Answer(data=_body(await context.engine.catalogue.effects.get(slug)))


@router.patch("/{slug}", responses=error_responses(404, 409, 422))
async def change_effect(slug: SlugInPath, body: wire.EffectPatch, context: ContextOf) -> Answer[wire.EffectDetails]:
    """Change the given fields. Submitted jobs keep their price and payload."""
    return Answer(data=_body(await context.engine.catalogue.effects.change(slug, body.changes())), message="Changed.")


@router.delete("/{slug}", responses=error_responses(404, 422))
async def delete_effect(slug: SlugInPath, context: ContextOf) -> Answer[DeletedSlug]:
    """Delete an effect. Jobs that use it continue."""
    await context.engine.catalogue.effects.delete(slug)
    return Answer(data=DeletedSlug(slug=slug), message="Deleted.")


def _body(view: EffectView) -> wire.EffectDetails:
    return wire.EffectDetails.of(view, view.effect)
