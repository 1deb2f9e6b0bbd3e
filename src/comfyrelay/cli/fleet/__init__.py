"""`comfyrelay fleet …`: machines for workers."""
