"""Use cases. The only place where transactions begin and end."""
