"""The machine that a worker runs on: its identity, scale-in protection and shutdown notices."""
