"""Warn about settings that are not read: misspelled environment variables, and a file in the current folder."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from comfyrelay.cli.output import print_note

# Variables that are not part of the settings classes.
_OTHERS = ("COMFYUI_API_URL", "CONFIG", "SIMULATOR_SECRET", "TOKEN", "URL")


def warn_of_unread_file(data_dir: Path | None = None) -> None:
    from comfyrelay.configuration import unread_file_warning

    if (warning := unread_file_warning(data_dir)) is not None:
        print_note(f"Warning: {warning}")


def warn_of_unknown(data_dir: Path | None = None) -> None:
    """Warn about unknown variables and a file in the current folder, which would otherwise be ignored silently."""
    from comfyrelay.configuration import ENV_PREFIX
    from comfyrelay.desk.settings import DeskSettings
    from comfyrelay.settings import Settings
    from comfyrelay.worker.settings import WorkerSettings

    warn_of_unread_file(data_dir)
    known = {
        *(f"{ENV_PREFIX}{name}" for name in _OTHERS),
        *(
            f"{model.model_config['env_prefix']}{name}".upper()
            for model in (Settings, DeskSettings, WorkerSettings)
            for name in model.model_fields
        ),
    }
    for name in sorted(os.environ):
        prefix = name.upper().partition("_")[0]
        if name.upper() in known or not difflib.get_close_matches(prefix, [ENV_PREFIX.rstrip("_")], cutoff=0.8):
            continue
        close = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.8)
        advice = f"Did you mean {close[0]}?" if close else "There is no such setting."
        print_note(f"Warning: the variable {name} is ignored. {advice}")
