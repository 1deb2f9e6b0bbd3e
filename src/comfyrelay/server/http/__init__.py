"""Shared parts of all routes: authentication, request context, limits and error responses."""
