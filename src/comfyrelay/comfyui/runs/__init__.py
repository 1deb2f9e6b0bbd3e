"""One run on a server, from submission to its end."""
