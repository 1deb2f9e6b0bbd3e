"""How many machines a fleet should have: what is seen, what is decided, and why. Nothing here asks or does anything."""
