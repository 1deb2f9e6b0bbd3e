"""The nodes that need weights. There are none here: pictures are drawn from prompts and seed, so that tries differ, and
the same try is the same picture."""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw

from comfyrelay.sim.nodes.results import NodeFunction, Result, Run, check_memory

# Cannot be loaded: it is no model.
BROKEN = "broken.safetensors"
LATENT_SCALE = 8
SHAPES = 12


@dataclass(frozen=True, slots=True)
class Latent:
    """`drawn_from` is all that its samplers were given; nothing where none has worked on it."""

    width: int
    height: int
    count: int
    drawn_from: tuple[str, ...] = ()


def load_checkpoint(_run: Run, *, ckpt_name: str) -> Result:
    if ckpt_name == BROKEN:
        # without its name: what speaks of a model file counts as a fault of the server
        raise RuntimeError("ERROR: Could not detect the type of this model.")
    return Result(outputs=(ckpt_name, ckpt_name, ckpt_name))


def encode(_run: Run, *, text: str, clip: str) -> Result:
    return Result(outputs=(f"{clip}: {text}",))


def empty_latent(_run: Run, *, width: int, height: int, batch_size: int) -> Result:
    check_memory(width // LATENT_SCALE, height // LATENT_SCALE, batch_size)
    return Result(outputs=(Latent(width, height, batch_size),))


def sample(_run: Run, *, latent_image: Latent, **given: object) -> Result:
    asked = repr(sorted(given.items()))
    return Result(outputs=(replace(latent_image, drawn_from=(*latent_image.drawn_from, asked)),))


def decode(_run: Run, *, samples: Latent, vae: str) -> Result:
    check_memory(samples.width, samples.height, samples.count)
    seed = hashlib.sha256(repr((samples.drawn_from, vae)).encode()).digest()
    drawn = [_draw(random.Random(seed + bytes([number % 256])), samples) for number in range(samples.count)]
    return Result(outputs=(drawn,))


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
    "CLIPTextEncode": encode,
    "EmptyLatentImage": empty_latent,
    "KSampler": sample,
    "VAEDecode": decode,
}
