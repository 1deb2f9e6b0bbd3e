"""The API for administrators."""

from comfyrelay.server.lazy_routers import lazy_routers

__all__ = ["ROUTERS"]

ROUTERS = lazy_routers(
    __name__,
    {
        "catalogue.workflows": "/api/admin/workflows",
        "catalogue.effects": "/api/admin/effects",
        "catalogue.uploads": "/api/admin",
        "fleets": "/api/admin/fleets",
        "autoscaling": "/api/admin/fleets/{stage}/{slug}",
        "workers": "/api/admin/workers",
        "dispatches": "/api/admin",
        "tenants": "/api/admin",
        "usage": "/api/admin/usage",
        "users": "/api/admin/users",
        "audit": "/api/admin/audit",
        "alerts": "/api/admin/alerts",
        "operations": "/api/admin",
        "overview": "/api/admin",
        "overview:outage_router": "/api/admin",
        "webhooks": "/api/admin",
    },
)
