"""Routes that belong to nobody: health, metrics, payments, local files."""
