"""What users submit and see: jobs, batches, files, events."""
