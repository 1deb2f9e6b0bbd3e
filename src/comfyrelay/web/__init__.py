"""The web app as it was built, and the pages around it."""
