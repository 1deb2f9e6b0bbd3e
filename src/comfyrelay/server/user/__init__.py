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

# Those whose prefix is that of others, too, come last: for every request each of their routes is tried.
ROUTERS = (
    jobs.router,
    events.router,
    previews.router,
    queue.router,
    live.router,
    lanes.router,
    batches.router,
    videos.router,
    presets.router,
    views.router,
    accounts.router,
    entering.router,
    effects.router,
    gallery.router,
    webhook.router,
)
