"""Simulate a policy, event by event, with the production decision function."""
