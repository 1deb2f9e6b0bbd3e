"""The API of administrators."""

from comfyrelay.server.admin import (
    assets,
    bursts,
    dispatches,
    effects,
    fleets,
    scaling,
    tenants,
    usage,
    workers,
    workflows,
)

__all__ = ["ROUTERS"]

ROUTERS = (
    workflows.router,
    effects.router,
    assets.router,
    fleets.router,
    scaling.router,
    workers.router,
    dispatches.router,
    bursts.router,
    tenants.router,
    usage.router,
)
