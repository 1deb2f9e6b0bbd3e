"""Effects: what end users pick, made of a workflow, overrides and a price."""

from fastapi import status

from comfyrelay.server.admin.models import Deleted, EffectBody, EffectPatch, NewEffect
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.admin.types import AnyId, TextCursor
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.fields import Limit, SlugInPath
from comfyrelay.server.base.problems import may_answer
from comfyrelay.services.catalogue.effects import EffectView

__all__ = ["router"]

router = admin_router("/effects")


@router.get("", responses=may_answer(422))
async def list_effects(
    context: ContextOf,
    workflow: AnyId = None,
    is_active: bool | None = None,
    limit: Limit = 50,
    cursor: TextCursor = None,
) -> Answer[Page[EffectBody]]:
    """All effects by slug, those that are switched off too."""
    page = await context.engine.catalogue.effects.page(
        workflow_slug=workflow, is_active=is_active, cursor=cursor, limit=limit
    )
    return Answer(data=Page(items=[_body(each) for each in page.items], next_cursor=page.next_cursor))


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(409, 422))
async def create_effect(body: NewEffect, context: ContextOf) -> Answer[EffectBody]:
    """Offer a workflow to users, at a price."""
    effect = await context.engine.catalogue.effects.create(**body.model_dump())
    return Answer(data=_body(EffectView(effect=effect, workflow_slug=body.workflow_slug)), message="Made.")


@router.get("/{slug}", responses=may_answer(404, 422))
async def get_effect(slug: SlugInPath, context: ContextOf) -> Answer[EffectBody]:
    return Answer(data=_body(await context.engine.catalogue.effects.get(slug)))


@router.patch("/{slug}", responses=may_answer(404, 409, 422))
async def change_effect(slug: SlugInPath, body: EffectPatch, context: ContextOf) -> Answer[EffectBody]:
    """Change what is sent. Jobs that were submitted before keep their price and what they run."""
    return Answer(data=_body(await context.engine.catalogue.effects.change(slug, body.changes())), message="Changed.")


@router.delete("/{slug}", responses=may_answer(404, 422))
async def delete_effect(slug: SlugInPath, context: ContextOf) -> Answer[Deleted]:
    """Take an effect away; jobs that were submitted with it go on."""
    await context.engine.catalogue.effects.delete(slug)
    return Answer(data=Deleted(slug=slug), message="Deleted.")


def _body(view: EffectView) -> EffectBody:
    effect = view.effect
    return EffectBody(
        id=effect.id,
        slug=effect.slug,
        name=effect.name,
        workflow_slug=view.workflow_slug,
        property_overrides=dict(effect.property_overrides),
        credits_cost=effect.credits_cost,
        is_active=effect.is_active,
        last_processing_time_seconds=effect.last_processing_time_seconds,
        created_at=effect.created_at,
        updated_at=effect.updated_at,
    )
