"""The machine that a worker runs on: who it is, what keeps it, and what takes it away."""
