"""Convert workflows saved by ComfyUI's editor into graphs."""
