"""Copies of everything that a desk, or a server on SQLite and local files, keeps; and putting one back."""
