"""The desk: the whole system in one process, for one person with one GPU."""
