"""The nodes that the stand-in knows, and what they do."""
