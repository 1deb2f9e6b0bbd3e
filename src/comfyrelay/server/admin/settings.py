"""The settings as they are in force."""

from comfyrelay import __version__
from comfyrelay.protocol import admin as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.settings import in_force

router = admin_router("/settings")


@router.get("")
async def list_settings(context: ContextOf) -> Answer[wire.EffectiveSettings]:
    """All settings of the process that answers, and where each comes from. Secrets are not shown."""
    items = [wire.Setting.of(each) for each in in_force(context.settings)]
    return Answer(data=wire.EffectiveSettings(version=__version__, items=items))
