"""Clients for one ComfyUI server, and the interface they share with Comfy Cloud."""
