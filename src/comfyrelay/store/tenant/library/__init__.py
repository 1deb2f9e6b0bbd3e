"""What a tenant has made and kept: outputs, pictures of them, presets, views, what can be reused."""
