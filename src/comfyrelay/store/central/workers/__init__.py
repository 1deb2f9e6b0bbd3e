"""Fleets and workers: registry, leases and reports."""
