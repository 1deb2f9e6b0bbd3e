"""The worker API: eleven requests, for workers that only make outgoing connections."""

from comfyrelay.server.lazy_routers import lazy_routers

__all__ = ["ROUTERS"]

ROUTERS = lazy_routers(__name__, {"api": "/api/worker"})
