"""Commands that we run: those of which nothing is left when they are over, and those that outlive us."""
