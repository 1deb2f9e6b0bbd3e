"""ComfyUI processes that ComfyRelay itself starts, watches and stops."""
