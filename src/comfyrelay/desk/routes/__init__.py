"""Routes that only a desk has."""
