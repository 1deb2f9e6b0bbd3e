"""Health for clients of the Comfy API."""

from comfyrelay.protocol.comfy_api import ComfyHealth
from comfyrelay.server.comfy_api.problems import comfy_router

router = comfy_router("/api/v2/health")


@router.get("")
async def health() -> ComfyHealth:
    """Report that the process is alive."""
    return ComfyHealth()
