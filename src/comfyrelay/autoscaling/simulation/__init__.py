"""What a policy would have done: simulated, event by event, with the very decision that runs."""
