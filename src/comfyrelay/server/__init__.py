"""The control plane over HTTP: what users, workers and administrators can ask of the engine."""
