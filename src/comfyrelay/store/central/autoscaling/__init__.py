"""Machines, autoscaling decisions, job durations and usage."""
