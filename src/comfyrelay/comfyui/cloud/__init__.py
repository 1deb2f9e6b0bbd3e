"""Comfy Cloud, with the face of a ComfyUI server."""
