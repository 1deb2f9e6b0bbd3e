"""Comfy Cloud's API."""
