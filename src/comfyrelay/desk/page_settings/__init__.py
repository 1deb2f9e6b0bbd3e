"""Settings that the owner can see and change on the page."""
