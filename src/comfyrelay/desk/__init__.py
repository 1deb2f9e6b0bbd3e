"""The desk: the whole system in one process for one user."""
