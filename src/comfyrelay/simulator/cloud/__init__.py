"""The Comfy API v2, as Comfy Cloud serves it: it refuses whatever its contract does not contain."""
