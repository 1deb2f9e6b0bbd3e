"""Find ComfyRelay's folders of this user, where the operating system expects them."""

import os
from pathlib import Path

from platformdirs import user_data_path, user_state_path

APP = "comfyrelay"


def data_folder() -> Path:
    """Return the default data folder: `~/.local/share/comfyrelay` on Linux, or in `XDG_DATA_HOME`;
    `~/Library/Application Support/comfyrelay` on macOS; and `%LOCALAPPDATA%\\comfyrelay` on Windows."""
    return user_data_path(APP, appauthor=False)


def state_folder() -> Path:
    """Return the folder for state that all data folders share. `XDG_STATE_HOME` sets its parent on every system."""
    given = os.environ.get("XDG_STATE_HOME")
    return Path(given) / APP if given else user_state_path(APP, appauthor=False)
