"""Inspect media files and draw their posters, in separate processes with limits."""
