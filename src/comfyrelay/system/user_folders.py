"""The folders of this user for ComfyRelay, as each operating system names them."""

import os
from pathlib import Path

from platformdirs import user_data_path, user_state_path

APP = "comfyrelay"


def data_folder() -> Path:
    """Linux: `~/.local/share/comfyrelay`. macOS: `~/Library/Application Support/comfyrelay`. Windows:
    `%LOCALAPPDATA%\\comfyrelay`."""
    return user_data_path(APP, appauthor=False)


def state_folder() -> Path:
    """State that does not depend on the data folder in use. `XDG_STATE_HOME` sets its parent on every system."""
    given = os.environ.get("XDG_STATE_HOME")
    return Path(given) / APP if given else user_state_path(APP, appauthor=False)
