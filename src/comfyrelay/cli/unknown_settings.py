"""Environment variables that look like settings but are not, mostly typos."""

from __future__ import annotations

import difflib
import os

from rich.console import Console

# Read elsewhere, not by the settings classes.
_OTHERS = ("CONFIG", "TOKEN", "URL")


def warn_of_unknown(err: Console) -> None:
    """Warn, because a misspelt setting would be ignored silently."""
    from comfyrelay.configuration import ENV_PREFIX
    from comfyrelay.desk.settings import DeskSettings
    from comfyrelay.settings import Settings
    from comfyrelay.worker.settings import WorkerSettings

    known = {
        *(f"{ENV_PREFIX}{name}" for name in _OTHERS),
        *(
            f"{model.model_config['env_prefix']}{name}".upper()
            for model in (Settings, DeskSettings, WorkerSettings)
            for name in model.model_fields
        ),
    }
    ours = ENV_PREFIX.rstrip("_")
    for name in sorted(os.environ):
        if name.upper() in known or not difflib.get_close_matches(name.upper().partition("_")[0], [ours], cutoff=0.8):
            continue
        close = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.8)
        advice = f"Did you mean {close[0]}?" if close else "`comfyrelay` knows no such setting."
        err.print(f"Warning: the variable {name} is ignored. {advice}", highlight=False, markup=False, soft_wrap=True)
