"""Media files with tags in any encoding can be read with every supported version of PyAV."""

from io import BytesIO

import pytest

from comfyrelay.pyav import open_to_read, tags_of
from tests.support import media_samples

pytest.importorskip("av", reason="PyAV is not installed")


def test_tags_in_another_encoding_do_not_make_a_file_unreadable() -> None:
    with open_to_read(BytesIO(media_samples.wav(tags="Motörhead!".encode("latin-1")))) as container:
        tags = tags_of(container.metadata)
    assert "Mot\N{REPLACEMENT CHARACTER}rhead!" in tags.values()


def test_surrogates_in_tags_are_replaced() -> None:
    assert tags_of({"artist": "Mot\udcf6rhead"}) == {"artist": "Mot\N{REPLACEMENT CHARACTER}rhead"}
