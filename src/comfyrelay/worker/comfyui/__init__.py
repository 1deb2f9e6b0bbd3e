"""The ComfyUI servers and Comfy Cloud clients that a worker runs jobs on."""
