"""Autoscaling in a cluster: KEDA reads the replica count of a fleet, and Kubernetes creates and deletes the pods."""
