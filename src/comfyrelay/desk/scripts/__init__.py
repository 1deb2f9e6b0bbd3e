"""Run the user's own script as a job."""
