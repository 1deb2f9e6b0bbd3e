"""Commands for jobs on a desk or server, on this or another machine."""
