"""Serve the built web app, and the pages for browsers without a session."""
