"""Presets: named sets of input values."""

from comfyrelay.domain.records.catalogue import PresetRecord
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Cursor, IdInPath, Limit, page_of, user_router

router = user_router("/api/presets", "presets")


@router.get("", responses=error_responses(422))
async def presets(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: Cursor = None
) -> Answer[Page[wire.Preset]]:
    """List your presets, newest first."""
    page = await context.engine.catalogue.presets.page(user.tenant_id, before_id=cursor, limit=limit)
    return page_of(page, _preset)


@router.post("", status_code=201, responses=error_responses(403, 409, 422))
async def create_preset(body: wire.NewPreset, context: ContextOf, user: CurrentUser) -> Answer[wire.Preset]:
    """Save input values as a preset with a unique name."""
    made = await context.engine.catalogue.presets.create(user.tenant_id, name=body.name, values=body.values)
    return Answer(data=_preset(made), message="Saved.")


@router.delete("/{preset_id}", responses=error_responses(403, 404, 422))
async def delete_preset(preset_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deleted]:
    """Delete a preset."""
    await context.engine.catalogue.presets.remove(user.tenant_id, preset_id)
    return Answer(data=wire.Deleted(id=preset_id), message="Deleted.")


def _preset(preset: PresetRecord) -> wire.Preset:
    return wire.Preset.of(preset, values=preset.settings)
