"""Comfy Cloud's API, as the stand-in answers it."""
