"""Read, hash and check graphs in ComfyUI's API format."""
