"""Commands for jobs, on a desk or server that runs here or elsewhere."""
