"""Derive typed properties and their labels from a graph."""
