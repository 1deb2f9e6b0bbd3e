"""The `comfyrelay` command."""
