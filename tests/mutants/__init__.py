"""Mutants of the engine: each breaks one rule, and a test must notice. Run `python -m tests.mutants`."""
