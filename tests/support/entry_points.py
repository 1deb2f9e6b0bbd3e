"""Check that containers run existing commands with known variables."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import typer.main

from comfyrelay.cli.main import app
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.settings import Settings
from comfyrelay.worker.settings import PLAIN_NAMES, WorkerSettings

_MODELS = (Settings, WorkerSettings, DeskSettings)
VARIABLES = frozenset(
    {
        *PLAIN_NAMES.values(),
        *(f"{model.model_config['env_prefix']}{name}".upper() for model in _MODELS for name in model.model_fields),
    }
)
# variables that boto3, PostgreSQL, Python and pip read
OTHERS = re.compile(r"(AWS|PG|POSTGRES|PYTHON|PIP|S3)_?[A-Z0-9_]*|PATH|HOME")


def parse(words: Sequence[str]) -> str:
    """Parse the arguments of `comfyrelay`, and fail as the command would."""
    command: Any = typer.main.get_command(app)
    left, name = list(words), "comfyrelay"
    while left and not left[0].startswith("-") and left[0] in getattr(command, "commands", {}):
        name += f" {left[0]}"
        command = command.commands[left.pop(0)]
    command.make_context(name, left)
    return name


def unknown_variables(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name not in VARIABLES and not OTHERS.fullmatch(name))
