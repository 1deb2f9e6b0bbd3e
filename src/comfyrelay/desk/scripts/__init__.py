"""The user's own script as a job."""
