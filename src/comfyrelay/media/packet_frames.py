"""Count the frames that a decoder shows for a packet. In some formats, a packet may contain several."""

from collections.abc import Callable, Iterator

# Count the shown frames of a packet.
Count = Callable[[bytes], int]
# In these formats, the index of an MP4 lists each frame. FFmpeg splits the samples of some others.
INDEXED = frozenset({"h264", "hevc", "mjpeg", "mpeg4", "prores"})
_ONE_PER_PACKET = INDEXED | {"ffv1", "flv1", "mpeg1video", "mpeg2video", "theora", "vp8"}
_SEQUENCE_HEADER = 1
# Frame headers, redundant ones too, and frames.
_FRAMES = frozenset({3, 6, 7})


def _vp9(packet: bytes) -> int:
    return sum(_is_shown_vp9(frame) for frame in _in_superframe(packet) if frame)


def _in_superframe(packet: bytes) -> Iterator[bytes]:
    """Yield the frames of a packet. A superframe ends with the sizes of its frames between two equal markers."""
    marker = packet[-1] if packet else 0
    count, size_bytes = (marker & 7) + 1, (marker >> 3 & 3) + 1
    index = 2 + count * size_bytes
    if marker & 0xE0 != 0xC0 or len(packet) < index or packet[-index] != marker:
        yield packet
        return
    at, sizes = 0, packet[1 - index : -1]
    for number in range(count):
        size = int.from_bytes(sizes[number * size_bytes : (number + 1) * size_bytes], "little")
        yield packet[at : at + size]
        at += size


def _is_shown_vp9(frame: bytes) -> bool:
    # The bits are: a marker of 2, 2 of the profile, 1 more for profile 3, "show an earlier frame", the type, "show".
    bits = frame[0] << 1 if frame[0] & 0x30 == 0x30 else frame[0]
    return bool(bits & 0b1010)


def _av1_counter(extradata: bytes) -> Count:
    is_reduced = False

    def count(data: bytes) -> int:
        nonlocal is_reduced
        shown = 0
        for kind, unit in _av1_units(data):
            if kind == _SEQUENCE_HEADER:
                is_reduced = is_reduced or bool(unit[0] & 0b1000)
            elif kind in _FRAMES:
                # The bits are: "show an earlier frame", 2 of the type, "show". A reduced header has none of them.
                shown += is_reduced or bool(unit[0] & 0b1001_0000)
        return shown

    # The sequence header may be only here, after four bytes.
    count(extradata[4:])
    return count


def _av1_units(packet: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(packet):
        header = packet[at]
        at += 2 if header & 4 else 1
        size = len(packet) - at
        if header & 2:
            size = 0
            for number in range(8):
                byte = packet[at] if at < len(packet) else 0
                at += 1
                size |= (byte & 0x7F) << (7 * number)
                if not byte & 0x80:
                    break
        if packet[at : at + size]:
            yield header >> 3 & 15, packet[at : at + size]
        at += size


def counter(codec: str, extradata: bytes | None) -> Count | None:
    """Return the function that counts the shown frames of a packet. `None` means that only a decoder can count them."""
    match codec:
        case "vp9":
            return _vp9
        case "av1":
            return _av1_counter(extradata or b"")
    return _one if codec in _ONE_PER_PACKET else None


def _one(_packet: bytes) -> int:
    return 1
