"""Commands for a desk: ComfyRelay on your own machine."""
