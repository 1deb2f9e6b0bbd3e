"""Details of a desk that has started."""

from dataclasses import dataclass, field
from pathlib import Path

from comfyrelay.protocol.desk import SimulatedJobs


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskReady:
    url: str
    data_dir: Path
    # The configuration file, which may not exist yet.
    settings_file: Path
    # The URLs of ComfyUI, reachable or not.
    comfyui: list[str]
    # The URLs of ComfyUI that do not answer yet.
    silent: list[str]
    # The folder of a managed ComfyUI.
    comfyui_dir: Path | None
    simulated_jobs: SimulatedJobs
    is_new: bool
    # The URL for other machines, if they may connect.
    url_elsewhere: str | None
    # Opens the page in one browser, once.
    link: str = field(repr=False)
