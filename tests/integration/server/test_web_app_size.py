"""The size of the built web app."""

import re

import pytest

from comfyrelay.web.app_files import APP


@pytest.mark.usefixtures("built_app")
def test_first_script_is_at_most_200_kb_compressed() -> None:
    names = re.findall(r'"/(assets/[^"]+\.js)"', (APP / "index.html").read_text("utf-8"))

    assert names
    assert sum((APP / f"{name}.gz").stat().st_size for name in names) <= 200_000
