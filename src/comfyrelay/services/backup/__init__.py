"""Back up and restore the data of a desk, or of a server with SQLite and local files."""
