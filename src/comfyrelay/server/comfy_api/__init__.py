"""The Comfy API v2, for the SDKs of Comfy Org: jobs that are submitted with their graph, and assets."""

from comfyrelay.server.lazy_routers import lazy_routers

__all__ = ["PREFIX", "ROUTERS"]

PREFIX = "/api/v2"

ROUTERS = lazy_routers(
    __name__,
    {
        "jobs": "/api/v2/jobs",
        "events": "/api/v2/jobs",
        "assets": "/api/v2/assets",
        "health": "/api/v2/health",
    },
)
