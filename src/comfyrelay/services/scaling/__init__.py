"""How many machines there should be: what is seen, what is done about it, and what comes of it."""
