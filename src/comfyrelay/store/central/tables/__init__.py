"""The central schema: accounts, catalogue, workers and the dispatch queue. It contains no private data of tenants."""

from comfyrelay.store.central.tables import accounts, autoscaling, catalogue, operations, queue, workers
from comfyrelay.store.schema import central_metadata as metadata

__all__ = ["accounts", "autoscaling", "catalogue", "metadata", "operations", "queue", "workers"]
