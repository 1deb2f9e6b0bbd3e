"""Workflows, effects and the files that they need, for administrators."""
