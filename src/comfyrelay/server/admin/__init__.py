"""The API of administrators."""

from comfyrelay.server.admin import (
    bursts,
    dispatches,
    fleets,
    joining,
    overview,
    reconcile,
    scaling,
    settings,
    storage,
    tenants,
    usage,
    users,
    webhooks,
    workers,
)
from comfyrelay.server.admin.catalogue import assets, carried, effects, workflows

__all__ = ["ROUTERS"]

ROUTERS = (
    workflows.router,
    effects.router,
    assets.router,
    carried.router,
    fleets.router,
    joining.router,
    scaling.router,
    workers.router,
    dispatches.router,
    bursts.router,
    tenants.router,
    usage.router,
    users.router,
    storage.router,
    overview.router,
    webhooks.router,
    reconcile.router,
    settings.router,
)
