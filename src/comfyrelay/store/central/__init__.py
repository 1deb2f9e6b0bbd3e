"""The central database: accounts, catalogue, workers and the dispatch queue."""
