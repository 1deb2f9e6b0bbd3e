"""Parse the Dockerfiles and the compose file of deploy/."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
COMPOSE = DEPLOY / "compose.yaml"
EXAMPLE = DEPLOY / "compose.env.example"
_VARIABLE = re.compile(r"\$\{(\w+)(?::\?[^}]*)?\}")


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", path.read_text("utf-8"), flags=re.M).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, rest in found]


def of_kind(path: Path, kind: str) -> list[str]:
    return [rest for word, rest in instructions(path) if word == kind]


def words_of(path: Path) -> list[str]:
    """Return the default command of the image."""
    [entry], [command] = of_kind(path, "ENTRYPOINT"), of_kind(path, "CMD")
    return [*json.loads(entry), *json.loads(command)]


def environment_of(path: Path) -> dict[str, str]:
    """Return the variables of the last stage."""
    return dict(variable.split("=", maxsplit=1) for variable in shlex.split(of_kind(path, "ENV")[-1]))


def example() -> dict[str, str]:
    lines = [line for line in EXAMPLE.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", maxsplit=1) for line in lines)


def variables() -> set[str]:
    return set(_VARIABLE.findall(COMPOSE.read_text("utf-8")))


def composed(values: Mapping[str, str]) -> dict[str, Any]:
    """Substitute variables after parsing, as Compose does."""
    found: dict[str, Any] = _substitute(yaml.safe_load(COMPOSE.read_text("utf-8")), values)
    return found


def _substitute(node: Any, values: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return _VARIABLE.sub(lambda match: values[match[1]], node)
    if isinstance(node, dict):
        return {key: _substitute(child, values) for key, child in node.items()}
    return [_substitute(child, values) for child in node] if isinstance(node, list) else node
