"""The built web app and the pages around it."""
