"""The HTTP API of the control plane, for users, workers and administrators."""
