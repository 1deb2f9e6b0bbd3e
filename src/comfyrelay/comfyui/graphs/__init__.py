"""Graphs in ComfyUI's API format: reading, hashing, checking."""
