"""Object stores for the media tests."""

from tests.integration.storage.conftest import clock, local, root, s3, store, store_name

__all__ = ["clock", "local", "root", "s3", "store", "store_name"]
