"""Build the command line of a script job from the configuration and the request.

`<python> <script> --wait --profile … --template-api … --input-subdir … --positive … [--negative …] [--tries n]
[--randomize-seed] [extra args…]`, as an argument list. No shell is involved.
"""

import os
import re
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
MAX_TEXT_BYTES = 100_000
# A job's own fields set these options. Jobs cannot repeat them, because most scripts use the last value.
FIELD_OPTIONS = (
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
_BUILT_IN = ("-m", "comfyrelay", "batch-i2v")

Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
Profile = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$")]


class ScriptSettings(BaseModel):
    """The table `[desk.script]` of `comfyrelay.toml`. It has no other source, because it names programs to run."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    python: Folder = Field(Path(sys.executable), description="the Python that runs the script")
    script: Folder | None = Field(None, description="the script; if not set, `comfyrelay batch-i2v`")
    working_folder: Folder = Field(Path(), description="the working folder of the script")
    input_folder: Folder = Field(Path("input"), description="the folder that contains --input-subdir")
    template_folder: Folder = Field(Path("templates"), description="the folder with the graphs for --template-api")
    output_folder: Folder | None = Field(
        None,
        description="the folder of files that the script names without a folder, if not the working folder",
    )
    profiles: list[Profile] = Field(["look-dev", "medium", "production"], description="the values of --profile")
    default_profile: str | None = Field(
        None, description="the profile of jobs that choose none; if not set, the first profile"
    )
    arguments: list[str] = Field([], description="arguments of every run, before the arguments of the job")
    extra_options: dict[str, str] = Field(
        {"--seed": "[0-9]{1,20}"},
        description="options that a job may add → regular expression for their value; empty for a switch",
    )
    output_extension: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,10}$")] = Field(
        "mp4", description="extension of a job's output; the script may save other files as well"
    )
    environment: dict[str, str] = Field({}, repr=False, description="environment variables of the script")
    grace_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        10, description="seconds between SIGTERM and SIGKILL when a script is stopped"
    )
    max_log_bytes: Annotated[int, Field(ge=64 * 1024)] = Field(
        16 * 1024**2, description="maximum size of a log; the middle of a longer log is omitted"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.profiles:
            raise ValueError("profiles: at least one is required")
        if self.default_profile is not None and self.default_profile not in self.profiles:
            raise ValueError(f"default_profile: {self.default_profile!r} is not among the profiles")
        for name, pattern in self.extra_options.items():
            # Most scripts also accept abbreviated options.
            taken = next((option for option in FIELD_OPTIONS if option.startswith(name)), None)
            if not _OPTION.fullmatch(name) or taken is not None:
                reason = f"it abbreviates {taken}" if taken else "it does not have the form --name"
                raise ValueError(f"extra_options: {name!r} cannot be allowed: {reason}")
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"extra_options: the pattern of {name} is not valid: {error}") from None
        return self

    @property
    def own_folders(self) -> list[Path]:
        """The folders that the script saves files in. Files elsewhere are not its outputs."""
        return [folder for folder in (self.output_folder, self.working_folder) if folder is not None]

    @property
    def profile(self) -> str:
        return self.default_profile or self.profiles[0]


def command_of(settings: ScriptSettings, job: ScriptJob) -> list[str]:
    """Return the argument list of a job. Raises `InvalidInput` with all invalid fields."""
    check_job(settings, job)
    program = [str(settings.python), str(settings.script)]
    if settings.script is None:
        program = [str(settings.python), *_BUILT_IN, "--input-root", str(settings.input_folder)]
    return [*program, *settings.arguments, *_field_options(settings, job), *job.extra_args]


def check_job(settings: ScriptSettings, job: ScriptJob, *, has_known_paths: bool = False) -> None:
    """Raise `InvalidInput` for a job that cannot run. `has_known_paths` skips the check of folder and template."""
    errors: dict[str, str] = {}
    for field in ("positive", "negative", "input_subdir"):
        if (problem := _text_problem(getattr(job, field) or "")) is not None:
            errors[field] = problem
    profile = job.profile or settings.profile
    if profile not in settings.profiles:
        errors["profile"] = f"{profile!r} is not one of {', '.join(settings.profiles)}."
    if job.tries is not None and not 1 <= job.tries <= MAX_ATTEMPTS:
        errors["tries"] = f"This must be between 1 and {MAX_ATTEMPTS}."
    if not has_known_paths:
        if job.template not in templates(settings):
            errors["template"] = f"{job.template!r} is not one of the graphs in the template folder."
        try:
            inputs_in(settings.input_folder, job.input_subdir)
        except InvalidInput as error:
            errors.setdefault("input_subdir", error.detail)
    if (problem := _extra_problem(settings.extra_options, job.extra_args)) is not None:
        errors["extra_args"] = problem
    if errors:
        raise InvalidInput(" ".join(f"{field}: {problem}" for field, problem in errors.items()), errors=errors)


def templates(settings: ScriptSettings) -> list[str]:
    """Return the names of the available templates."""
    try:
        folder = settings.template_folder.resolve(strict=True)
        found = [
            path.name
            for path in folder.iterdir()
            if path.suffix.lower() == ".json" and path.is_file() and path.resolve().parent == folder
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


def _field_options(settings: ScriptSettings, job: ScriptJob) -> Iterator[str]:
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
    # A value that looks like an option must be in the same argument as its option.
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


def _text_problem(text: str) -> str | None:
    if not is_storable(text):
        return "The text contains a character that is not allowed."
    if len(text.encode()) > MAX_TEXT_BYTES:
        return f"The text is longer than {MAX_TEXT_BYTES:,} bytes."
    return None


def _extra_problem(allowed: Mapping[str, str], arguments: Sequence[str]) -> str | None:
    """Check additional options: `--name`, `--name=value`, or `--name` followed by a value."""
    pending = list(arguments)
    while pending:
        name, equals, value = pending.pop(0).partition("=")
        if name not in allowed:
            return f"{name!r} is not allowed. The allowed options are: {', '.join(allowed) or 'none'}."
        if not allowed[name]:
            if equals:
                return f"{name} takes no value."
            continue
        if not equals:
            if not pending or pending[0].startswith("-"):
                return f"{name} needs a value; write {name}=VALUE."
            value = pending.pop(0)
        if _text_problem(value) or not re.fullmatch(allowed[name], value):
            return f"{value!r} is not a valid value of {name}."
    return None
