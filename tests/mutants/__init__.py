"""Broken mutants of the engine: each rule broken on purpose, to see that a test notices. Run `python -m tests.mutants`."""
