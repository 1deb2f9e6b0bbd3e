"""Telling the systems of others that jobs have ended."""
