"""Paths in the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDINGS = Path(__file__).with_name("recordings")
QUEUE_PACK = ROOT / "extras" / "queue_on_comfyrelay"
