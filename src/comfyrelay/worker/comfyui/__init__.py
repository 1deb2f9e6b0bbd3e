"""The ComfyUI servers and cloud services that a worker runs jobs on."""
