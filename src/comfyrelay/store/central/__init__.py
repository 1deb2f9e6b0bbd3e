"""The central database: catalogue, fleet and dispatch queue."""
