"""Code that all routes share: authentication, request context, limits and error responses."""
