"""A shard: the private data of some tenants."""
