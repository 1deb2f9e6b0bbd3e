"""Pure rules, no I/O."""
