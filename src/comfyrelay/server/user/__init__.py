"""The API of users: accounts, effects, files, jobs, batches, the gallery, presets and webhooks."""

from comfyrelay.server.user import (
    accounts,
    batches,
    effects,
    entering,
    events,
    gallery,
    jobs,
    lanes,
    live,
    presets,
    previews,
    queue,
    videos,
    views,
    webhook,
)

__all__ = ["ROUTERS"]

ROUTERS = (
    accounts.router,
    entering.router,
    effects.router,
    videos.router,
    jobs.router,
    events.router,
    previews.router,
    lanes.router,
    live.router,
    queue.router,
    batches.router,
    gallery.router,
    presets.router,
    views.router,
    webhook.router,
)
