"""A shard: everything private."""
