"""The version of this source tree, for the build: hatchling evaluates `version()`.

A release is a tag `v1.2.3` on a commit whose changelog starts with `## 1.2.3`, without `(unreleased)`. Commits
before it are `1.2.3.devN`, later ones `1.2.3.postN`, both with the commit's hash. A tree without git is `1.2.3.dev0`.
An sdist contains its version.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_HEADING = re.compile(r"^## (\d+\.\d+\.\d+)(?P<unreleased> \(unreleased\))?", re.MULTILINE)
_DESCRIPTION = re.compile(r"(?:v(?P<tag>.+)-(?P<distance>\d+)-)?g?(?P<commit>[0-9a-f]{7,})(?P<dirty>-dirty)?")


def version() -> str:
    found = _HEADING.search((ROOT / "CHANGELOG.md").read_text("utf-8"))
    if found is None:
        raise ValueError("CHANGELOG.md has no heading like `## 1.2.3`.")
    release = found[1]
    described = _git("describe", "--tags", "--match", "v[0-9]*", "--long", "--always", "--dirty", "--abbrev=9")
    parts = _DESCRIPTION.fullmatch(described or "")
    if parts is None:
        return f"{release}.dev0"
    is_released = parts["tag"] == release
    if is_released and parts["distance"] == "0" and not parts["dirty"]:
        if found["unreleased"]:
            raise ValueError(f"Replace (unreleased) in the heading of {release} in CHANGELOG.md, then move the tag.")
        return release
    distance = parts["distance"] or _git("rev-list", "--count", "HEAD")
    kind, suffix = "post" if is_released else "dev", ".dirty" if parts["dirty"] else ""
    return f"{release}.{kind}{distance}+g{parts['commit']}{suffix}"


def _git(*words: str) -> str | None:
    """Return the output of git, or `None` if this folder is not the root of a repository."""
    environ = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    print(version())
