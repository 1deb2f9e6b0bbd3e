"""Presets: inputs kept under a name."""

from fastapi import APIRouter, status

from comfyrelay.domain.records.catalogue import Preset
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.fields import Limit
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.user.models import Cursor, Deleted, IdInPath, NewPreset, PresetBody

__all__ = ["router"]

router = APIRouter(prefix="/api/presets", tags=["presets"])


@router.get("", responses=may_answer(401, 422, 503))
async def presets(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: Cursor = None
) -> Answer[Page[PresetBody]]:
    """Your presets, newest first."""
    page = await context.engine.catalogue.presets.page(user.tenant_id, before_id=cursor, limit=limit)
    return Answer(data=Page(items=[_preset(each) for each in page.items], next_cursor=page.next_cursor))


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(401, 403, 409, 422, 503))
async def create_preset(body: NewPreset, context: ContextOf, user: CurrentUser) -> Answer[PresetBody]:
    """Keep inputs under a name that none of your presets has."""
    made = await context.engine.catalogue.presets.create(user.tenant_id, name=body.name, values=body.values)
    return Answer(data=_preset(made), message="Kept.")


@router.delete("/{preset_id}", responses=may_answer(401, 403, 404, 422, 503))
async def delete_preset(preset_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Deleted]:
    """Forget a preset."""
    await context.engine.catalogue.presets.remove(user.tenant_id, preset_id)
    return Answer(data=Deleted(id=preset_id), message="Deleted.")


def _preset(preset: Preset) -> PresetBody:
    return PresetBody(id=preset.id, name=preset.name, values=dict(preset.settings), created_at=preset.created_at)
