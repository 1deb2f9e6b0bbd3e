"""Read models for users: job lists, the queue, live changes, posters and estimates."""
