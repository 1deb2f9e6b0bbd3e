"""Pack the Helm chart into `dist/` like `helm package`, with the version of the wheel there.

The same sources give the same bytes. Needs only the standard library.
"""

import gzip
import io
import re
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "comfyrelay"


def pack(folder: Path, release: str) -> Path:
    place = folder / f"{CHART.name}-{release}.tgz"
    with (
        place.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(each for each in CHART.rglob("*") if each.is_file()):
            content = path.read_bytes()
            if path == CHART / "Chart.yaml":
                content = _with_version(content.decode(), release).encode()
            entry = tarfile.TarInfo(path.relative_to(CHART.parent).as_posix())
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return place


def _with_version(text: str, release: str) -> str:
    text = re.sub(r"^version: .*$", f"version: {release}", text, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f'appVersion: "{release}"', text, flags=re.MULTILINE)


if __name__ == "__main__":
    [wheel] = (ROOT / "dist").glob("*.whl")
    # Helm requires three numbers; the versions of builds between tags have more.
    found = re.match(r"\d+\.\d+\.\d+", wheel.name.split("-")[1])
    assert found is not None
    made = pack(wheel.parent, found[0])
    print(f"{made.relative_to(ROOT)}  {made.stat().st_size:,} bytes")
