"""Client for Comfy Cloud."""
