"""ComfyUI's own formats."""
