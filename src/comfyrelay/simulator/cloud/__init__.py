"""Comfy Cloud's API, as the simulator answers it."""
