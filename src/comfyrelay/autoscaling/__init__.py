"""Autoscaling: machine providers, and the loop that decides how many machines each fleet has."""
