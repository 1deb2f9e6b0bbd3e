"""Clients for one ComfyUI server, and the interface they share with the Comfy API."""
