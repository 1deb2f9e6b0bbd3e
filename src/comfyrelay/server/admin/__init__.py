"""The API of administrators."""

from comfyrelay.server.admin import (
    autoscaling,
    dispatches,
    fleets,
    operations,
    overview,
    tenants,
    usage,
    users,
    webhooks,
    workers,
)
from comfyrelay.server.admin.catalogue import effects, uploads, workflows

__all__ = ["ROUTERS"]

_CATALOGUE = (workflows, effects, uploads)
_OTHERS = (fleets, autoscaling, workers, dispatches, tenants, usage, users, operations, overview, webhooks)
ROUTERS = tuple(module.router for module in (*_CATALOGUE, *_OTHERS))
