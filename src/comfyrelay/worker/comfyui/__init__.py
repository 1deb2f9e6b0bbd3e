"""The ComfyUI servers and cloud services that run a worker's jobs."""
