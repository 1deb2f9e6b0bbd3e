"""Set up the parts of a desk when it starts."""
