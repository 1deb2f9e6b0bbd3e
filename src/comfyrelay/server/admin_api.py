"""The admin API, all of it."""

from comfyrelay.server import (
    admin_assets,
    admin_dispatches,
    admin_effects,
    admin_fleets,
    admin_tenants,
    admin_workers,
    admin_workflows,
)

__all__ = ["ROUTERS"]

ROUTERS = (
    admin_workflows.router,
    admin_effects.router,
    admin_assets.router,
    admin_fleets.router,
    admin_workers.router,
    admin_dispatches.router,
    admin_tenants.router,
)
