"""File names give the same media types on every machine."""

import subprocess
import sys


def test_media_types_do_not_depend_on_the_machine() -> None:
    look = "from comfyrelay.media_types import guess_media_type as g; print(g('x.mkv'), g('x.wav'), g('x.nothing'))"
    empty = f"import mimetypes; mimetypes.knownfiles = []; {look}"
    here, elsewhere = (
        subprocess.run([sys.executable, "-c", each], capture_output=True, check=True, text=True).stdout
        for each in (look, empty)
    )
    assert here == elsewhere
    assert here.split()[0] == "video/x-matroska"
