"""A gateway to the ComfyUI API of a server, for programs on this machine that send no token."""

from comfyrelay.gateway.proxy import Gateway

__all__ = ["Gateway"]
