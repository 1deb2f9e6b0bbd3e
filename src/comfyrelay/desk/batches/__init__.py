"""Expand folders and prompts into batches, and copy their outputs to folders."""
