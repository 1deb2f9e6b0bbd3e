"""Build the command line of a script job from the configuration and the request.

`<python> <script> --wait --profile … --template-api … --input-subdir … --positive … [--negative …] [--tries n]
[--randomize-seed] [extra args…]`, as an argument list. No shell is involved.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from comfyrelay.desk.batches.folders import inputs_in
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.protocol.desk import MAX_ATTEMPTS, ScriptJob
from comfyrelay.text import is_storable, natural_key

# Linux limits an argument to 128 KiB.
LONGEST_TEXT_BYTES = 100_000
# Options set by a job's own fields cannot be repeated: most scripts would use the last.
CONTRACT = (
    "--wait",
    "--profile",
    "--template-api",
    "--input-subdir",
    "--positive",
    "--negative",
    "--tries",
    "--randomize-seed",
)
_OPTION = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_-]*")
_SHIPPED = ("-m", "comfyrelay", "batch-i2v")

Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


Profile = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$")]


class ScriptSettings(BaseModel):
    """`[desk.script]` in `comfyrelay.toml`; never from another source, because it names programs to run."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    python: Folder = Field(Path(sys.executable), description="the Python that runs the script")
    script: Folder | None = Field(None, description="the script; `comfyrelay batch-i2v` when not set")
    working_folder: Folder = Field(Path(), description="the folder that the script is started in")
    input_folder: Folder = Field(Path("input"), description="the folder that --input-subdir is in")
    template_folder: Folder = Field(Path("templates"), description="the folder with the graphs for --template-api")
    output_folder: Folder | None = Field(
        None, description="where files are that the script names without their folder; also its working folder"
    )
    profiles: list[Profile] = Field(["look-dev", "medium", "production"], description="what --profile may be")
    default_profile: str | None = Field(
        None, description="the profile of a job that names none; the first when not set"
    )
    arguments: list[str] = Field([], description="arguments of every call, before the job's own")
    extra_options: dict[str, str] = Field(
        {"--seed": "[0-9]{1,20}"},
        description="options that a job may add → regular expression for their value; empty: a switch",
    )
    output_extension: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,10}$")] = Field(
        "mp4", description="extension of the file that is a job's output; the script may save further files"
    )
    environment: dict[str, str] = Field({}, repr=False, description="variables for the script")
    grace_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        10, description="how long a script has to end before it is killed"
    )
    max_log_bytes: Annotated[int, Field(ge=64 * 1024)] = Field(
        16 * 1024**2, description="size of a log; of longer ones the middle is left out"
    )

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if not self.profiles:
            raise ValueError("profiles: name one at least")
        if self.default_profile is not None and self.default_profile not in self.profiles:
            raise ValueError(f"default_profile: {self.default_profile!r} is not among the profiles")
        for name, pattern in self.extra_options.items():
            # most scripts also accept abbreviated options
            taken = next((option for option in CONTRACT if option.startswith(name)), None)
            if not _OPTION.fullmatch(name) or taken is not None:
                why = f"it abbreviates {taken}" if taken else "it is not like --name"
                raise ValueError(f"extra_options: {name!r} cannot be allowed: {why}")
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"extra_options: the pattern of {name} is not valid: {error}") from None
        return self

    @property
    def own_folders(self) -> list[Path]:
        """Where the script saves files: files elsewhere are not its outputs."""
        return [each for each in (self.output_folder, self.working_folder) if each is not None]

    @property
    def profile(self) -> str:
        return self.default_profile or self.profiles[0]


def command_of(settings: ScriptSettings, job: ScriptJob) -> list[str]:
    """Return the argument list of a job, or raise `InvalidInput` with all invalid fields."""
    check_job(settings, job)
    return [*_program(settings), *settings.arguments, *_contract(settings, job), *job.extra_args]


def check_job(settings: ScriptSettings, job: ScriptJob, *, has_known_places: bool = False) -> None:
    """Raise `InvalidInput` for a job that cannot run. `has_known_places` skips the check of folder and template."""
    errors: dict[str, str] = {}
    for field in ("positive", "negative", "input_subdir"):
        if (why := _bad_text(getattr(job, field) or "")) is not None:
            errors[field] = why
    profile = job.profile or settings.profile
    if profile not in settings.profiles:
        errors["profile"] = f"{profile!r} is not one of {', '.join(settings.profiles)}."
    if job.tries is not None and not 1 <= job.tries <= MAX_ATTEMPTS:
        errors["tries"] = f"It must be between 1 and {MAX_ATTEMPTS}."
    if not has_known_places:
        if job.template not in templates(settings):
            errors["template"] = f"{job.template!r} is not one of the graphs in the template folder."
        try:
            inputs_in(settings.input_folder, job.input_subdir)
        except InvalidInput as error:
            errors.setdefault("input_subdir", error.detail)
    if (why := _bad_extra(settings.extra_options, job.extra_args)) is not None:
        errors["extra_args"] = why
    if errors:
        raise InvalidInput(" ".join(f"{field}: {why}" for field, why in errors.items()), errors=errors)


def shown(argv: Sequence[str]) -> str:
    """A command as typed in a shell, for display only."""
    return shlex.join(argv)


def templates(settings: ScriptSettings) -> list[str]:
    """Names of the available templates."""
    try:
        folder = settings.template_folder.resolve(strict=True)
        found = [
            each.name
            for each in folder.iterdir()
            if each.suffix.lower() == ".json" and each.is_file() and each.resolve().parent == folder
        ]
    except (OSError, RuntimeError):
        return []
    return sorted(found, key=natural_key)


def check_settings(settings: ScriptSettings) -> None:
    """Raise `ConfigurationError` for a missing program or folder."""
    if not (settings.python.is_file() and os.access(settings.python, os.X_OK)):
        raise ConfigurationError(f"[desk.script] python: {settings.python} is not a program.")
    if settings.script is not None and not settings.script.is_file():
        raise ConfigurationError(f"[desk.script] script: {settings.script} is not a file.")
    for name in ("working_folder", "input_folder", "template_folder"):
        if not (folder := getattr(settings, name)).is_dir():
            raise ConfigurationError(f"[desk.script] {name}: {folder} is not a folder.")


def _program(settings: ScriptSettings) -> list[str]:
    if settings.script is not None:
        return [str(settings.python), str(settings.script)]
    return [str(settings.python), *_SHIPPED, "--input-root", str(settings.input_folder)]


def _contract(settings: ScriptSettings, job: ScriptJob) -> Iterator[str]:
    yield "--wait"
    yield from _option("--profile", job.profile or settings.profile)
    yield from _option("--template-api", str(settings.template_folder / job.template))
    yield from _option("--input-subdir", job.input_subdir or ".")
    yield from _option("--positive", job.positive)
    if job.negative is not None:
        yield from _option("--negative", job.negative)
    if job.tries is not None:
        yield from _option("--tries", str(job.tries))
    if job.randomize_seed:
        yield "--randomize-seed"


def _option(name: str, value: str) -> list[str]:
    # as one argument, because a value may look like an option
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


def _bad_text(text: str) -> str | None:
    if not is_storable(text):
        return "It contains a character that cannot be used."
    if len(text.encode()) > LONGEST_TEXT_BYTES:
        return f"It is longer than {LONGEST_TEXT_BYTES:,} bytes."
    return None


def _bad_extra(allowed: Mapping[str, str], arguments: Sequence[str]) -> str | None:
    """Check further options: each is `--name`, `--name=value`, or `--name` followed by a value."""
    pending = list(arguments)
    while pending:
        name, equals, value = pending.pop(0).partition("=")
        if name not in allowed:
            choice = f"one of {', '.join(allowed)}" if allowed else "allowed: none is"
            return f"{name!r} is not {choice}."
        if not allowed[name]:
            if equals:
                return f"{name} takes no value."
            continue
        if not equals:
            if not pending or pending[0].startswith("-"):
                return f"{name} needs a value; write {name}=VALUE."
            value = pending.pop(0)
        if _bad_text(value) or not re.fullmatch(allowed[name], value):
            return f"{value!r} is not a value of {name}."
    return None
