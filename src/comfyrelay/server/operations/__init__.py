"""Health, metrics, payments, local files and API docs."""

from comfyrelay.server.lazy_routers import lazy_routers

__all__ = ["FILE_ROUTERS", "ROUTERS"]

ROUTERS = lazy_routers(__name__, {"payments": "/api/webhooks", "docs": "/docs", "docs:schema_router": "/openapi.json"})
# Only for files in a local folder.
FILE_ROUTERS = lazy_routers(__name__, {"files": "/files"})
