"""What only a desk serves."""
