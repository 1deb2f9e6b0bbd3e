"""GPU sharing: how many ComfyUI processes run on one GPU."""
