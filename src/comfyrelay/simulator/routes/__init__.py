"""ComfyUI's routes, as the simulator answers them."""
