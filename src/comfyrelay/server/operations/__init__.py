"""Health, metrics, payments, local files and API docs."""
