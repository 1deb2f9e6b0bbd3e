"""Create, update and remove the AWS resources of a fleet."""
