"""What users see of their jobs: lists, units of the queue, live changes, pictures, estimates."""
