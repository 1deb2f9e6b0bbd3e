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

# Modules with a prefix for themselves.
_SEPARATE = (jobs, events, previews, queue, live, slots, batches, videos, presets, views)
# Modules that share the prefix `/api` come last: each of their routes is tried for every request.
_SHARED = (accounts, account_links, effects, gallery, webhook)
ROUTERS = tuple(module.router for module in (*_SEPARATE, *_SHARED))
