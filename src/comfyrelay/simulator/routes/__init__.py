"""ComfyUI's routes, as the stand-in answers them."""
