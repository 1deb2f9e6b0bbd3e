"""`comfyrelay fleet export …`."""

from collections.abc import Mapping
from pathlib import Path

import typer

from comfyrelay.errors import InvalidInput
from comfyrelay.system.atomic import write

export_app = typer.Typer(no_args_is_help=True, help="Write what makes a fleet elsewhere: Terraform, Kubernetes.")


def write_files(folder: Path, files: Mapping[str, str], *, make_folder: bool = False) -> None:
    try:
        if make_folder:
            folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write(folder / name, text.encode())
    except OSError as error:
        raise InvalidInput(f"Nothing can be written to {folder}: {error.strerror}. Name another --output.") from None


def require_provider(slug: str, provider: str, wanted: str) -> None:
    if provider != wanted:
        raise InvalidInput(f"The fleet {slug} is of the provider {provider}; this is for {wanted}.")
