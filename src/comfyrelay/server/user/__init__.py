"""The API of users: accounts, effects, files, jobs, batches, the gallery, presets, webhooks and ComfyUI's editor."""

from comfyrelay.server.lazy_routers import lazy_routers

__all__ = ["JOBS", "ROUTERS"]

ROUTERS = lazy_routers(
    __name__,
    {
        # Modules with a prefix of their own.
        "jobs": "/api/ai-jobs",
        "events": "/api/ai-jobs",
        "previews": "/api/ai-jobs",
        "queue": "/api/queue",
        "live": "/api/events",
        "slots": "/api/slots",
        "batches": "/api/batches",
        "videos": "/api/videos",
        "presets": "/api/presets",
        "views": "/api/views",
        "editor": "/api/editor",
        # Modules that share the prefix `/api` come last: each of their routes is tried for every request.
        "own_account": "/api/account",
        **dict.fromkeys(("accounts", "account_links", "effects", "gallery", "storefront", "webhook"), "/api"),
    },
)
JOBS = ROUTERS[0]
