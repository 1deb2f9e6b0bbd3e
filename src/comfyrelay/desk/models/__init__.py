"""Models that the forms of the desk name."""
