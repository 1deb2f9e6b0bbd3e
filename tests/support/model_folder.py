"""Model files of a simulated ComfyUI, with pictures and metadata."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.api_calls import png
from tests.support.chromium import PROMPT_GRAPH

LORAS = ("ink.safetensors", "people/anna.safetensors", "people/broken.safetensors")
MODELS: Mapping[str, Sequence[str]] = {"checkpoints": ["simulator.safetensors", "ink.safetensors"], "loras": LORAS}
TAGS = {"10_anna": {"red hair": 4, "anna person": 9}, "2_more": {"red hair": 1}}
INK = "#204080"

# PROMPT_GRAPH with a LoRA and a checkpoint that exists.
LORA_GRAPH: dict[str, Any] = {
    **PROMPT_GRAPH,
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "simulator.safetensors"}},
    "5": {
        "class_type": "KSampler",
        "inputs": {**PROMPT_GRAPH["5"]["inputs"], "model": ["8", 0]},
    },
    "8": {
        "class_type": "LoraLoaderModelOnly",
        "inputs": {"lora_name": LORAS[0], "strength_model": 1.0, "model": ["1", 0]},
    },
}


def write_safetensors(file: Path, metadata: Mapping[str, str]) -> None:
    header = json.dumps({"__metadata__": dict(metadata)}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


def write_models(folder: Path) -> None:
    """Write some model files: one LoRA has a picture, one has trigger words, and one is not a safetensors file."""
    loras = folder / "models" / "loras"
    (loras / "people").mkdir(parents=True)
    (loras / "ink.preview.png").write_bytes(png(INK))
    write_safetensors(loras / LORAS[0], {"modelspec.trigger_phrase": "inkwash", "modelspec.title": "Ink wash"})
    write_safetensors(loras / LORAS[1], {"ss_tag_frequency": json.dumps(TAGS), "ss_output_name": "anna-v2"})
    (loras / LORAS[2]).write_bytes(b"\xff" * 64)
    # A secret, which no route may return.
    (folder / "models" / "secret.safetensors").write_bytes(b"secret")
