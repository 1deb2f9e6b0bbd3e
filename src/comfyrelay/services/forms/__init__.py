"""Derive typed properties with labels from a graph."""
