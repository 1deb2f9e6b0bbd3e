"""The dispatch queue: claims, leases, and what workers cannot run."""
