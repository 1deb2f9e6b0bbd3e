"""Object storage: files in a local folder or an S3 bucket. The database is in `store`."""
