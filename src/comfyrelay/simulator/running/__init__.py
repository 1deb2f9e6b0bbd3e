"""Run a queued prompt: validation, order, execution, cache, history."""
