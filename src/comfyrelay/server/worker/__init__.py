"""The API of workers: seven calls, by workers that can only reach out."""

from comfyrelay.server.worker.api import router

__all__ = ["router"]
