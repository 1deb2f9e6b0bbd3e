"""What keeps the service in order, and shows how it is."""
