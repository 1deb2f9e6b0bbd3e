"""`comfyrelay fleet`: commands for the machines of workers."""
