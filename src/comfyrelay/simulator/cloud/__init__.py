"""The Comfy API v2 as served by Comfy Cloud. Requests that are not in its contract are refused."""
