"""Routes that only a desk has."""

from comfyrelay.server.lazy_routers import lazy_routers

__all__ = ["ROUTERS"]

ROUTERS = lazy_routers(
    __name__,
    {
        "estimates": "/api/desk",
        "batches": "/api/desk",
        "gallery": "/api/desk/gallery",
        "models": "/api/desk/models",
        "page": "/api/desk",
        "scripts": "/api/desk/script",
        "settings": "/api/desk",
        "desk": "/api/desk",
        # The routes of this router have no common prefix.
        "sessions": "",
    },
)
