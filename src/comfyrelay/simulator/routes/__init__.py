"""ComfyUI's routes."""
