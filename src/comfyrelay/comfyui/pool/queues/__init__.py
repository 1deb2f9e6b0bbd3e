"""Queues of a pool: in memory, or durable in an SQLite file."""
