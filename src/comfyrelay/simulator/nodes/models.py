"""Simulated nodes that need model weights in ComfyUI. They draw images from their inputs instead."""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

from PIL import Image, ImageDraw

from comfyrelay.simulator.nodes.media import Images
from comfyrelay.simulator.nodes.results import NodeContext, NodeFunction, NodeResult, check_memory

# This checkpoint fails to load.
BROKEN = "broken.safetensors"
LATENT_SCALE = 8
SHAPES = 12
SAMPLER = "KSampler"
PREVIEW_SIDE = 256
# The proportion of the new image when a sampler changes an existing image.
DENOISE = 0.5


@dataclass(frozen=True, slots=True)
class Latent:
    """`sampled_with` are the sampler inputs (empty before sampling). `pixels` are the source images, if any."""

    width: int
    height: int
    count: int
    sampled_with: tuple[str, ...] = ()
    pixels: tuple[Image.Image, ...] = ()


def load_checkpoint(_context: NodeContext, *, ckpt_name: str) -> NodeResult:
    if ckpt_name == BROKEN:
        # ComfyUI's message for an unreadable checkpoint.
        raise RuntimeError("ERROR: Could not detect the type of this model.")
    return NodeResult(outputs=(ckpt_name, ckpt_name, ckpt_name))


def load_lora(
    _context: NodeContext,
    *,
    model: str,
    lora_name: str,
    strength_model: float,
    clip: str = "",
    strength_clip: float = 0.0,
) -> NodeResult:
    with_clip = (f"{clip} + {lora_name} {strength_clip}",) if clip else ()
    return NodeResult(outputs=(f"{model} + {lora_name} {strength_model}", *with_clip))


def last_layer(_context: NodeContext, *, clip: str, stop_at_clip_layer: int) -> NodeResult:
    return NodeResult(outputs=(f"{clip} to {stop_at_clip_layer}",))


def zero_out(_context: NodeContext, *, conditioning: str) -> NodeResult:
    return NodeResult(outputs=(f"no {conditioning}",))


def encode(_context: NodeContext, *, text: str, clip: str) -> NodeResult:
    return NodeResult(outputs=(f"{clip}: {text}",))


def empty_latent(_context: NodeContext, *, width: int, height: int, batch_size: int) -> NodeResult:
    check_memory(width // LATENT_SCALE, height // LATENT_SCALE, batch_size)
    return NodeResult(outputs=(Latent(width, height, batch_size),))


def encode_pixels(_context: NodeContext, *, pixels: Images, **_given: object) -> NodeResult:
    width, height = (max(LATENT_SCALE, side // LATENT_SCALE * LATENT_SCALE) for side in pixels[0].size)
    return NodeResult(outputs=(Latent(width, height, len(pixels), pixels=tuple(pixels)),))


def mask_latent(_context: NodeContext, *, samples: Latent, **_given: object) -> NodeResult:
    return NodeResult(outputs=(samples,))


def scale_latent(
    _context: NodeContext, *, samples: Latent, width: int = 0, height: int = 0, scale_by: float = 1.0, **_given: object
) -> NodeResult:
    if width or height:
        width = width or round(samples.width * height / samples.height)
        height = height or round(samples.height * width / samples.width)
    else:
        width, height = round(samples.width * scale_by), round(samples.height * scale_by)
    check_memory(width // LATENT_SCALE, height // LATENT_SCALE, samples.count)
    return NodeResult(outputs=(replace(samples, width=max(1, width), height=max(1, height)),))


def sample(_context: NodeContext, *, latent_image: Latent, **given: object) -> NodeResult:
    inputs = repr(sorted(given.items()))
    return NodeResult(outputs=(replace(latent_image, sampled_with=(*latent_image.sampled_with, inputs)),))


def decode(_context: NodeContext, *, samples: Latent, vae: str) -> NodeResult:
    check_memory(samples.width, samples.height, samples.count)
    seed = hashlib.sha256(repr((samples.sampled_with, vae)).encode()).digest()
    images = [_decode_one(random.Random(seed + bytes([index % 256])), samples, index) for index in range(samples.count)]
    return NodeResult(outputs=(images,))


def _decode_one(rng: random.Random, latent: Latent, index: int) -> Image.Image:
    if not latent.pixels:
        return _draw(rng, latent)
    source = latent.pixels[index % len(latent.pixels)].convert("RGB").resize((latent.width, latent.height))
    return Image.blend(source, _draw(rng, latent), DENOISE) if latent.sampled_with else source


def steps_of(class_type: str, inputs: Mapping[str, Any]) -> int:
    """Return the number of steps that a node reports; 0 unless the node is a sampler."""
    return int(inputs["steps"]) if class_type == SAMPLER else 0


def sampler_preview(inputs: Mapping[str, Any], part: float) -> bytes:
    """Return the preview of a partly sampled image: a small JPEG that becomes clearer with each step."""
    latent: Latent = inputs["latent_image"]
    scale = PREVIEW_SIDE / max(latent.width, latent.height)
    small = Latent(max(1, round(latent.width * scale)), max(1, round(latent.height * scale)), 1, ("",))
    picture = _draw(random.Random(str(inputs.get("seed"))), small)
    noise = Image.effect_noise(picture.size, 90).convert("RGB")
    file = BytesIO()
    Image.blend(noise, picture, part).save(file, "JPEG", quality=75)
    return file.getvalue()


def _draw(rng: random.Random, latent: Latent) -> Image.Image:
    def colour() -> tuple[int, int, int]:
        return rng.randrange(256), rng.randrange(256), rng.randrange(256)

    picture = Image.new("RGB", (latent.width, latent.height), colour())
    draw = ImageDraw.Draw(picture)
    for _ in range(SHAPES if latent.sampled_with else 0):
        x, y = rng.randrange(latent.width), rng.randrange(latent.height)
        radius = rng.randrange(1, max(2, min(latent.width, latent.height) // 3))
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour())
    return picture


MODEL_NODES: Mapping[str, NodeFunction] = {
    "CheckpointLoaderSimple": load_checkpoint,
    "LoraLoader": load_lora,
    "LoraLoaderModelOnly": load_lora,
    "CLIPSetLastLayer": last_layer,
    "CLIPTextEncode": encode,
    "ConditioningZeroOut": zero_out,
    "EmptyLatentImage": empty_latent,
    "EmptySD3LatentImage": empty_latent,
    "VAEEncode": encode_pixels,
    "VAEEncodeForInpaint": encode_pixels,
    "SetLatentNoiseMask": mask_latent,
    "LatentUpscale": scale_latent,
    "LatentUpscaleBy": scale_latent,
    SAMPLER: sample,
    "VAEDecode": decode,
}
