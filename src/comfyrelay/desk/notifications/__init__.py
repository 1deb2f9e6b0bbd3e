"""Send notifications when jobs end."""
