"""The nodes that the simulator knows, and what they do."""
