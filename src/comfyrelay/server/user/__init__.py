"""The API of users: accounts, effects, files, jobs, batches, presets and webhooks."""

from comfyrelay.server.user import accounts, batches, effects, events, jobs, presets, videos, webhook

__all__ = ["ROUTERS"]

ROUTERS = (
    accounts.router,
    effects.router,
    videos.router,
    jobs.router,
    events.router,
    batches.router,
    presets.router,
    webhook.router,
)
