"""ComfyUI processes that ComfyRelay starts itself, watches over and stops."""
