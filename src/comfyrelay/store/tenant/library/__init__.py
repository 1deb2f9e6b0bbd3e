"""A tenant's library: outputs, posters, presets, saved views and reusable jobs."""
