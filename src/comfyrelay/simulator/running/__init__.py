"""From a prompt in the queue to its history: validation, order, execution, cache."""
