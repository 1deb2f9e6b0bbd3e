"""Run the user's own script as jobs."""
