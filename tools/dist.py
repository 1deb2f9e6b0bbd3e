"""Build the sdist, and the wheel from it, into `dist/`, and check their sizes.

The same sources give the same bytes. `ui/build.py` must have run: both contain the web app.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# The wheel has 2.9 MB. Raise a limit only for a good reason, because every GPU host downloads the wheel.
LARGEST_BYTES = {".whl": 4_000_000, ".gz": 5_000_000}


def build(folder: Path) -> list[Path]:
    """Build the sdist and the wheel. Return their paths."""
    shutil.rmtree(folder, ignore_errors=True)
    _hatchling(ROOT, "sdist", folder)
    [sdist] = folder.glob("*.tar.gz")
    # Build the wheel from the sdist, like package managers. The sdist must be complete, and build without git and Node.
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        [source] = Path(unpacked).iterdir()
        _hatchling(source, "wheel", folder)
    [wheel] = folder.glob("*.whl")
    return [sdist, wheel]


def _hatchling(source: Path, target: str, folder: Path) -> None:
    words = (sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder))
    subprocess.run(words, cwd=source, check=True)


def too_large(path: Path, limits: dict[str, int]) -> str | None:
    size, limit = path.stat().st_size, limits[path.suffix]
    return f"{path.name} has {size:,} bytes; the limit is {limit:,}." if size > limit else None


if __name__ == "__main__":
    built = build(DIST)
    for each in built:
        print(f"{each.relative_to(ROOT)}  {each.stat().st_size:,} bytes")
    sys.exit("\n".join(filter(None, (too_large(each, LARGEST_BYTES) for each in built))) or None)
