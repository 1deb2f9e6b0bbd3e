"""The versions of ComfyUI that the compatibility suite ran with, and comparison of versions."""

# Run by `make compat`. The table in docs/reference/comfyui-versions.md has the same versions.
TRIED = ("0.3.64", "0.7.0", "0.28.0")
TRIED_ON = "2026-11-19"
# The first version that can cancel a running or waiting prompt by its id.
CANCEL_BY_ID = (0, 28)


def version_key(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version for comparison; `None` if it has none. Suffixes such as `rc1` are ignored."""
    numbers: list[int] = []
    for part in version.strip().removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits[:9]))
    return tuple(numbers) or None


def version_note(version: str) -> str | None:
    """Return a sentence if a ComfyUI is older or newer than every version that was tried."""
    found = version_key(version)
    oldest, newest = TRIED[0], TRIED[-1]
    if found is None:
        return None
    if found < (version_key(oldest) or ()):
        return (
            f"ComfyUI {version} is older than {oldest}, the oldest version that ComfyRelay was tried with. "
            "Update ComfyUI if jobs fail."
        )
    if found > (version_key(newest) or ()):
        return (
            f"ComfyUI {version} is newer than {newest}, the newest version that ComfyRelay was tried with. "
            "Update ComfyRelay if jobs fail."
        )
    return None
