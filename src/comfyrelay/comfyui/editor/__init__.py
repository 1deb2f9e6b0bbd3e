"""Workflows as ComfyUI's editor saves them, turned into graphs that a server runs."""
