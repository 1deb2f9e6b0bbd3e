"""From a graph to a workflow with typed properties."""
