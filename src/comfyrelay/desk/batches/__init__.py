"""From folders and prompts to batches, and their outputs back into folders."""
