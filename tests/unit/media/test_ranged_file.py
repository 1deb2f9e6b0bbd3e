"""A whole file is fetched in blocks."""

import io

from comfyrelay.media.probe_child import BLOCK_BYTES, _RangedFile


def test_rest_of_a_file_is_fetched_in_blocks() -> None:
    content = bytes(range(256)) * (2 * BLOCK_BYTES // 256) + b"end"
    fetched: list[int] = []

    def fetch(start: int, length: int) -> bytes:
        fetched.append(length)
        return content[start : start + length]

    with io.BufferedReader(_RangedFile(fetch, size=len(content)), BLOCK_BYTES) as file:
        assert file.read() == content
    assert len(fetched) == 3
