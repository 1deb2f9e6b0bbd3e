"""The dispatch queue: leases are taken, kept alive, settled, stopped and reaped here."""
