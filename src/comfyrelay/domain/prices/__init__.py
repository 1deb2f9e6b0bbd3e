"""Prices in tokens, rounded up to whole numbers."""
