"""Who runs it: workers and their fleets."""
