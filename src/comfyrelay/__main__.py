"""`python -m comfyrelay` is the `comfyrelay` command."""

from comfyrelay.cli.main import main

main()
