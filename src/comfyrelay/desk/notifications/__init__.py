"""Notifications when jobs end."""
