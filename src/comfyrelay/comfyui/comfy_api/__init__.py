"""Client for the Comfy API v2: Comfy Cloud, serverless endpoints, and other ComfyRelay servers."""
