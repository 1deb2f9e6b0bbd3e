"""Machine providers."""
