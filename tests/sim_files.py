"""Where the recordings of a real ComfyUI are."""

from pathlib import Path

RECORDINGS = Path(__file__).parent / "sim" / "recordings"
