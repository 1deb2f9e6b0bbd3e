"""The API of workers: nine calls, by workers that can only reach out."""

from comfyrelay.server.worker.api import router

__all__ = ["router"]
