"""Derive typed and labelled properties from a graph."""
