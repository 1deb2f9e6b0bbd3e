"""A gateway to ComfyUI's API of a server, for programs of this machine that send no token."""

from comfyrelay.gateway.proxy import Gateway

__all__ = ["Gateway"]
