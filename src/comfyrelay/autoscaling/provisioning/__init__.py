"""What a fleet has at AWS: how it is made, taken away, and written as Terraform."""
