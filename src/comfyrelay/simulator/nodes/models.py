"""Nodes that need weights. Images are drawn from prompt and seed instead: equal inputs give equal images."""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

from PIL import Image, ImageDraw

from comfyrelay.simulator.nodes.media import Images
from comfyrelay.simulator.nodes.results import NodeFunction, Result, Run, check_memory

# Fails to load: it is no model.
BROKEN = "broken.safetensors"
LATENT_SCALE = 8
SHAPES = 12
SAMPLER = "KSampler"
GLIMPSE_SIDE = 256
# How much a sampler changes an existing image.
PAINTED_OVER = 0.5


@dataclass(frozen=True, slots=True)
class Latent:
    """`drawn_from` are the sampler inputs, empty before sampling. `pixels` are the source images, if any."""

    width: int
    height: int
    count: int
    drawn_from: tuple[str, ...] = ()
    pixels: tuple[Image.Image, ...] = ()


def load_checkpoint(_run: Run, *, ckpt_name: str) -> Result:
    if ckpt_name == BROKEN:
        # without its name: an error that names a model file counts as the server's fault
        raise RuntimeError("ERROR: Could not detect the type of this model.")
    return Result(outputs=(ckpt_name, ckpt_name, ckpt_name))


def load_lora(
    _run: Run, *, model: str, lora_name: str, strength_model: float, clip: str = "", strength_clip: float = 0.0
) -> Result:
    with_clip = (f"{clip} + {lora_name} {strength_clip}",) if clip else ()
    return Result(outputs=(f"{model} + {lora_name} {strength_model}", *with_clip))


def last_layer(_run: Run, *, clip: str, stop_at_clip_layer: int) -> Result:
    return Result(outputs=(f"{clip} to {stop_at_clip_layer}",))


def zero_out(_run: Run, *, conditioning: str) -> Result:
    return Result(outputs=(f"no {conditioning}",))


def encode(_run: Run, *, text: str, clip: str) -> Result:
    return Result(outputs=(f"{clip}: {text}",))


def empty_latent(_run: Run, *, width: int, height: int, batch_size: int) -> Result:
    check_memory(width // LATENT_SCALE, height // LATENT_SCALE, batch_size)
    return Result(outputs=(Latent(width, height, batch_size),))


def encode_pixels(_run: Run, *, pixels: Images, **_given: object) -> Result:
    width, height = (max(LATENT_SCALE, side // LATENT_SCALE * LATENT_SCALE) for side in pixels[0].size)
    return Result(outputs=(Latent(width, height, len(pixels), pixels=tuple(pixels)),))


def mask_latent(_run: Run, *, samples: Latent, **_given: object) -> Result:
    return Result(outputs=(samples,))


def scale_latent(
    _run: Run, *, samples: Latent, width: int = 0, height: int = 0, scale_by: float = 1.0, **_given: object
) -> Result:
    if width or height:
        width = width or round(samples.width * height / samples.height)
        height = height or round(samples.height * width / samples.width)
    else:
        width, height = round(samples.width * scale_by), round(samples.height * scale_by)
    check_memory(width // LATENT_SCALE, height // LATENT_SCALE, samples.count)
    return Result(outputs=(replace(samples, width=max(1, width), height=max(1, height)),))


def sample(_run: Run, *, latent_image: Latent, **given: object) -> Result:
    asked = repr(sorted(given.items()))
    return Result(outputs=(replace(latent_image, drawn_from=(*latent_image.drawn_from, asked)),))


def decode(_run: Run, *, samples: Latent, vae: str) -> Result:
    check_memory(samples.width, samples.height, samples.count)
    seed = hashlib.sha256(repr((samples.drawn_from, vae)).encode()).digest()
    drawn = [_decoded(random.Random(seed + bytes([number % 256])), samples, number) for number in range(samples.count)]
    return Result(outputs=(drawn,))


def _decoded(chance: random.Random, latent: Latent, number: int) -> Image.Image:
    if not latent.pixels:
        return _draw(chance, latent)
    source = latent.pixels[number % len(latent.pixels)].convert("RGB").resize((latent.width, latent.height))
    return Image.blend(source, _draw(chance, latent), PAINTED_OVER) if latent.drawn_from else source


def steps_of(class_type: str, inputs: Mapping[str, Any]) -> int:
    """Number of steps that a node reports; none unless it is a sampler."""
    return int(inputs["steps"]) if class_type == SAMPLER else 0


def glimpse(inputs: Mapping[str, Any], part: float) -> bytes:
    """Preview of a partly sampled image: a small JPEG that gets clearer."""
    latent: Latent = inputs["latent_image"]
    scale = GLIMPSE_SIDE / max(latent.width, latent.height)
    small = Latent(max(1, round(latent.width * scale)), max(1, round(latent.height * scale)), 1, ("",))
    picture = _draw(random.Random(str(inputs.get("seed"))), small)
    noise = Image.effect_noise(picture.size, 90).convert("RGB")
    file = BytesIO()
    Image.blend(noise, picture, part).save(file, "JPEG", quality=75)
    return file.getvalue()


def _draw(chance: random.Random, latent: Latent) -> Image.Image:
    def colour() -> tuple[int, int, int]:
        return chance.randrange(256), chance.randrange(256), chance.randrange(256)

    picture = Image.new("RGB", (latent.width, latent.height), colour())
    draw = ImageDraw.Draw(picture)
    for _ in range(SHAPES if latent.drawn_from else 0):
        x, y = chance.randrange(latent.width), chance.randrange(latent.height)
        radius = chance.randrange(1, max(2, min(latent.width, latent.height) // 3))
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
