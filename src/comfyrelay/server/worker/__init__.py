"""The worker API: ten requests, for workers that only make outgoing connections."""

from comfyrelay.server.worker.api import router

__all__ = ["router"]
