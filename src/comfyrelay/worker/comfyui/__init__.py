"""Where a worker's jobs run: its ComfyUI servers and Comfy Cloud, and their care."""
