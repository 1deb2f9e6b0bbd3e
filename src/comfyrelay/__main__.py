"""`python -m comfyrelay` is the `comfyrelay` command."""

from comfyrelay.cli import main

main()
