"""Prices in tokens. They are whole numbers, and rounded up."""
