"""A tenant pool: everything private."""
