"""Change values in the configuration file, keeping its comments and order."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from comfyrelay.errors import ConfigurationError
from comfyrelay.system import atomic

_HEADER = "Settings of ComfyRelay. The page changes this file, and keeps comments."
# The file may contain secrets.
_MODE = 0o600


def read_document(path: Path) -> tomlkit.TOMLDocument:
    """Read the file; a new document if it does not exist."""
    try:
        return tomlkit.parse(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        document = tomlkit.document()
        document.add(tomlkit.comment(_HEADER))
        return document
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, TOMLKitError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}. Correct it in an editor first.") from None


def change_values(document: tomlkit.TOMLDocument, table: str | None, changes: Mapping[str, Any]) -> None:
    """Set values of a table, or before all tables. `None` removes a value, so that the default applies."""
    if table is not None and table not in document:
        document[table] = tomlkit.table()
    place: Any = document if table is None else document[table]
    for key, value in changes.items():
        if value is None:
            place.pop(key, None)
        else:
            # A new top-level value is written before the first table.
            place[key] = value


def write_document(path: Path, document: tomlkit.TOMLDocument) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, tomlkit.dumps(document).encode(), mode=_MODE, is_durable=True)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None
