"""The API of workers: ten calls, by workers that can only reach out."""

from comfyrelay.server.worker.api import router

__all__ = ["router"]
