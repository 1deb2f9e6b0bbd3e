"""The API of users: accounts, effects, files, jobs, batches, the gallery, presets and webhooks."""

from comfyrelay.server.user import (
    account_links,
    accounts,
    batches,
    effects,
    events,
    gallery,
    jobs,
    live,
    presets,
    previews,
    queue,
    slots,
    videos,
    views,
    webhook,
)

__all__ = ["ROUTERS"]

# Routers that share a prefix come last: each of their routes is tried for every request.
ROUTERS = (
    jobs.router,
    events.router,
    previews.router,
    queue.router,
    live.router,
    slots.router,
    batches.router,
    videos.router,
    presets.router,
    views.router,
    accounts.router,
    account_links.router,
    effects.router,
    gallery.router,
    webhook.router,
)
