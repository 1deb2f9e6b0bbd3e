"""The dispatch queue: what waits, who may claim it, leases, and what a worker is kept from."""
