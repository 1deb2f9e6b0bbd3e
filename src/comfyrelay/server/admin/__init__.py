"""The API of administrators."""

from comfyrelay.server.admin import assets, dispatches, effects, fleets, scaling, tenants, workers, workflows

__all__ = ["ROUTERS"]

ROUTERS = (
    workflows.router,
    effects.router,
    assets.router,
    fleets.router,
    scaling.router,
    workers.router,
    dispatches.router,
    tenants.router,
)
