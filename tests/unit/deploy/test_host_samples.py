"""The guides show the files in deploy/host."""

from pathlib import Path

import pytest

from tests.support.compose_files import DEPLOY
from tests.support.paths import ROOT

SAMPLES = sorted((DEPLOY / "host").iterdir())
GUIDES = [(ROOT / "docs" / "howto" / name).read_text("utf-8") for name in ("server-host.md", "workers.md")]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_guide_shows_the_sample(sample: Path) -> None:
    assert any(f"\n{sample.read_text('utf-8')}```" in guide for guide in GUIDES)
