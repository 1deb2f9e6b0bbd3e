"""Fleets and their workers: who they are, what they hold, and what they have said."""
