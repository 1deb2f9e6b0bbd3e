"""The API of administrators."""

from comfyrelay.server.admin import (
    autoscaling,
    bursts,
    dispatches,
    fleets,
    join_command,
    overview,
    reconcile,
    settings,
    storage,
    tenants,
    usage,
    users,
    webhooks,
    workers,
)
from comfyrelay.server.admin.catalogue import assets, effects, embedded_workflow, workflows

__all__ = ["ROUTERS"]

ROUTERS = (
    workflows.router,
    effects.router,
    assets.router,
    embedded_workflow.router,
    fleets.router,
    join_command.router,
    autoscaling.router,
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
