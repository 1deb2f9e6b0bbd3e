"""Decide how many machines a fleet should have. Pure functions."""
