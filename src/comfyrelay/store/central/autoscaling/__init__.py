"""Machines, decisions about them, what is learnt from jobs, and what machines did for whom."""
