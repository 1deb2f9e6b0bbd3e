"""One run on a server, from submission to completion."""
