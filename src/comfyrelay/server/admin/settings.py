"""The effective settings."""

from comfyrelay import __version__
from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.settings import effective_settings

router = admin_router("/settings")


@router.get("")
async def list_settings(context: ContextOf) -> Answer[wire.EffectiveSettings]:
    """All settings of this server process, with the source of each. Secrets are not shown."""
    return Answer(data=wire.EffectiveSettings(version=__version__, items=effective_settings(context.settings)))
