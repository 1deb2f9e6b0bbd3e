"""From a request to a job in the queue: what it means, whether it can be, and that it is."""
