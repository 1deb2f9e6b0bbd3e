"""The dispatch queue: claims, leases, and the jobs that workers cannot run."""
