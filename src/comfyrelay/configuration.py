"""Read settings from the environment (`COMFYRELAY_…`) and `comfyrelay.toml` in the data folder.

Only the functions of this module read settings. Importing or constructing a settings class does not.
"""

import difflib
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.user_folders import data_folder

ENV_PREFIX = "COMFYRELAY_"
_CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
_CONFIG_NAME = "comfyrelay.toml"
# The classes of the settings at the top level of the file and in its tables. Imported only to suggest a name.
_SERVER = "comfyrelay.settings:Settings"
_TABLES = {"worker": "comfyrelay.worker.settings:WorkerSettings", "desk": "comfyrelay.desk.settings:DeskSettings"}
# Nested tables, which `load_table` reads. Their settings have no environment variables.
_NESTED_TABLES = {"desk": ("script",)}
# Shorter than pydantic's messages.
_MESSAGES = {
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}
_JSON_EXAMPLES = {
    "shards": 'an object of shard names and database URLs: {"main": "postgresql://…"}',
    "fleet_secrets": 'an object of stages and lists of secrets: {"production": ["…"]}',
    "aws_identity_certificates": 'an object of regions and PEM files: {"eu-central-1": "/etc/aws/eu-central-1.pem"}',
    "aws_identity_accounts": 'an object of stages and lists of accounts: {"production": ["123456789012"]}',
    "alerts": 'an object of kinds and rules: {"*": {"urls": ["mailto:ops@example.com"], "quiet_minutes": 60}}',
    "signing_secrets": 'a list of secrets: ["…"]',
    "allowed_origins": 'a list of origins: ["https://example.com"]',
    "capabilities": 'an object with more facts about the worker: {"zone": "attic"}',
}


class ArgumentsOnly(BaseSettings):
    """Settings that are read only from arguments. `load` passes the values from the environment and the file."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Prevent pydantic from merging the `shards` of two sources: one must replace the other."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


S = TypeVar("S", bound=ArgumentsOnly)


def load(
    model: type[S],
    *,
    table: str | None = None,
    plain_names: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
) -> S:
    """Read settings from the environment and from the file or one of its tables. The environment overrides the file.

    `plain_names` maps settings to variables without the prefix. Variables with the prefix override them. `data_dir` is
    the data folder given on the command line.
    """
    path = config_path(data_dir)
    own = own_values(_read_file(path), table)
    plain_names = plain_names or {}
    in_environment = _read_environment(model, plain_names)
    try:
        return model(**{**own, **in_environment})
    except ValidationError as invalid:
        variables = {key: _given_variable(model, key, plain_names) for key in model.model_fields}
        messages = [
            _message(model, error, in_environment, path, table, variables=variables) for error in invalid.errors()
        ]
        raise ConfigurationError("\n".join(messages)) from None


def own_values(in_file: Mapping[str, Any], table: str | None) -> dict[str, Any]:
    """Return the settings at the top level of a file or in one of its tables, without nested tables."""
    values = in_file.get(table, {}) if table else in_file
    others: Collection[str] = _NESTED_TABLES.get(table, ()) if table else _TABLES
    return {key: value for key, value in values.items() if key not in others}


def check_values(model: type[S], in_file: Mapping[str, Any]) -> tuple[S | None, dict[str, str]]:
    """Return the settings that a file with these values would result in, or the problem with each invalid setting."""
    try:
        return model(**{**in_file, **_read_environment(model, {})}), {}
    except ValidationError as invalid:
        return None, {str(error["loc"][0]) if error["loc"] else "": _reason(error) for error in invalid.errors()}


def load_table(table: str, name: str, *, data_dir: Path | None = None) -> dict[str, Any] | None:
    """Read a nested table of the file; `None` if it does not exist."""
    path = config_path(data_dir)
    found = _read_file(path).get(table, {}).get(name)
    if found is not None and not isinstance(found, dict):
        raise ConfigurationError(f"{path}: [{table}.{name}] must be a table.")
    return found


def config_path(data_dir: Path | None = None) -> Path | None:
    """Return the path of the configuration file, if it exists."""
    path = settings_file(data_dir)
    return path if path.is_file() else None


def settings_file(data_dir: Path | None = None) -> Path:
    """Return the path of the configuration file, which may not exist yet: the one that COMFYRELAY_CONFIG names, else
    `comfyrelay.toml` in the data folder. The current folder does not matter."""
    configured = os.environ.get(_CONFIG_VARIABLE)
    if not configured:
        given = os.environ.get(f"{ENV_PREFIX}DATA_DIR")
        folder = data_dir or (Path(given) if given else data_folder())
        return folder.expanduser().absolute() / _CONFIG_NAME
    path = Path(configured).expanduser()
    if not path.is_file():
        raise ConfigurationError(
            f"{_CONFIG_VARIABLE} is {path}, which is not a file. Create the file, or unset {_CONFIG_VARIABLE}."
        )
    return path.absolute()


def unread_file(data_dir: Path | None = None) -> Path | None:
    """Return the path of a configuration file in the current folder that is ignored because another one is read."""
    path = Path(_CONFIG_NAME).absolute()
    return path if path.is_file() and path.resolve() != settings_file(data_dir).resolve() else None


def unread_file_warning(data_dir: Path | None = None) -> str | None:
    """Return a warning about a configuration file in the current folder that is not read, if there is one."""
    unread = unread_file(data_dir)
    if unread is None:
        return None
    return f"{unread} is not read. Settings are in {settings_file(data_dir)}, or in COMFYRELAY_CONFIG."


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectiveSetting:
    """A setting and its source: `environment`, `file` or `default`. The value of a secret is `None`."""

    name: str
    variable: str
    value: Any
    source: str
    is_secret: bool
    description: str


def effective_settings(settings: ArgumentsOnly) -> list[EffectiveSetting]:
    """Return all settings of a process with their sources."""
    model, values = type(settings), settings.model_dump(mode="json")
    found = []
    for name, field in model.model_fields.items():
        variable = variable_of(model, name)
        given = "environment" if os.environ.get(variable) else "file"
        found.append(
            EffectiveSetting(
                name=name,
                variable=variable,
                value=values[name] if field.repr else None,
                source=given if name in settings.model_fields_set else "default",
                is_secret=not field.repr,
                description=field.description or "",
            )
        )
    return found


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}.") from None


def _read_environment(model: type[ArgumentsOnly], plain_names: Mapping[str, str]) -> dict[str, Any]:
    # Variables without the prefix are read as if they had it.
    plain = {
        variable_of(model, key).lower(): value for key, name in plain_names.items() if (value := os.environ.get(name))
    }
    source = EnvSettingsSource(model)
    source.env_vars = {**plain, **source.env_vars}
    try:
        return source()
    except SettingsError as error:
        # pydantic's message contains only the name of the field.
        key = next((name for name in _JSON_EXAMPLES if f'"{name}"' in str(error)), "shards")
        raise ConfigurationError(
            f"{_given_variable(model, key, plain_names)} is not valid JSON. It must be {_JSON_EXAMPLES[key]}."
        ) from None


def _message(
    model: type[ArgumentsOnly],
    error: ErrorDetails,
    in_environment: Mapping[str, Any],
    path: Path | None,
    table: str | None,
    *,
    variables: Mapping[str, str],
) -> str:
    message = _reason(error)
    if not error["loc"]:
        return f"{message}."
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        place = f" in [{table}]" if table else ""
        return f"{path}: unknown setting {key!r}{place}. {_suggestion(model, key, table)}"
    place = "in the environment" if key in in_environment else f"as {key} in {path}"
    description = model.model_fields[key].description
    return f"{variables[key]} ({description}): {message}. Correct it {place}."


def _reason(error: ErrorDetails) -> str:
    message = _MESSAGES.get(error["type"], "").format(**error.get("ctx", {})) or error["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _suggestion(model: type[ArgumentsOnly], key: str, table: str | None) -> str:
    """Suggest a setting with a similar name, including settings of other tables."""
    places: dict[str, list[str]] = {}
    for name, class_path in _TABLES.items():
        for field in _fields(class_path):
            places.setdefault(field, []).append(f"[{name}]")
    if table is None:
        places |= {name: [] for name in _TABLES}
    else:
        places |= {field: ["the part before all tables"] for field in _fields(_SERVER) if field not in places}
    close = difflib.get_close_matches(key.lower(), [*model.model_fields, *places], n=1)
    if not close:
        return "Remove it or correct its name."
    if close[0] in model.model_fields:
        return f"Did you mean {close[0]!r}?"
    found = places[close[0]]
    return f"Did you mean {close[0]} in {' or '.join(found)}?" if found else f"Did you mean [{close[0]}]?"


def _fields(class_path: str) -> Collection[str]:
    module, _, name = class_path.partition(":")
    fields: Mapping[str, Any] = getattr(import_module(module), name).model_fields
    return fields


def _given_variable(model: type[ArgumentsOnly], key: str, plain_names: Mapping[str, str]) -> str:
    """Return the variable that currently sets a setting, or that could set it."""
    variable = variable_of(model, key)
    is_given = variable in map(str.upper, os.environ)
    plain = plain_names.get(key, "")
    return plain if os.environ.get(plain) and not is_given else variable


def variable_of(model: type[ArgumentsOnly], key: str) -> str:
    """Return the environment variable of a setting."""
    return f"{model.model_config['env_prefix']}{key.upper()}"
