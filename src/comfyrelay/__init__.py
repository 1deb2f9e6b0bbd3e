"""ComfyRelay: one queue for all your ComfyUI GPUs."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("comfyrelay")
