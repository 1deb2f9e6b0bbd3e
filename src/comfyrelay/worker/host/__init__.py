"""The machine of a worker: its identity, scale-in protection and shutdown notices."""
