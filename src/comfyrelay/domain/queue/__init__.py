"""Rules of the queue: states, transitions, ordering, routing and settlement."""
