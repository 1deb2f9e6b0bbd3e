"""The simulator's nodes."""
