"""Media types of file names."""

import subprocess
import sys


def test_media_types_do_not_depend_on_the_machine() -> None:
    guess = "from comfyrelay.media_types import guess_media_type as g; print(g('x.mkv'), g('x.wav'), g('x.nothing'))"
    empty = f"import mimetypes; mimetypes.knownfiles = []; {guess}"
    with_tables, without_tables = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
        for program in (guess, empty)
    )
    assert with_tables == without_tables
    assert with_tables.split()[0] == "video/x-matroska"
