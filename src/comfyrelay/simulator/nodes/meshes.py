"""Nodes that create and save 3D models. Every model is a cube."""

import json
import struct
from collections.abc import Mapping
from itertools import product
from typing import Any

from comfyrelay.simulator.nodes.models import Latent
from comfyrelay.simulator.nodes.results import NodeContext, NodeFunction, NodeResult
from comfyrelay.simulator.nodes.savers import NO_SIZE, metadata

_LATENT_SIDE = 8
_FACES = "013 032 576 547 451 410 762 723 046 062 173 751"
_FLOATS, _SHORTS = 5126, 5123
_VERTICES, _INDICES = 34962, 34963
_JSON, _BINARY = b"JSON", b"BIN\0"


def empty_latent(_context: NodeContext, *, resolution: int, batch_size: int) -> NodeResult:
    del resolution
    return NodeResult(outputs=(Latent(_LATENT_SIDE, _LATENT_SIDE, batch_size),))


def decode(_context: NodeContext, *, samples: Latent, vae: str, num_chunks: int, octree_resolution: int) -> NodeResult:
    del vae, num_chunks, octree_resolution
    return NodeResult(outputs=(samples.count,))


def to_mesh(_context: NodeContext, *, voxel: int, threshold: float) -> NodeResult:
    del threshold
    return NodeResult(outputs=(voxel,))


def save_glb(context: NodeContext, *, mesh: int, filename_prefix: str) -> NodeResult:
    target = context.folders.save_target(filename_prefix, size=NO_SIZE)
    entries = []
    for index in range(mesh):
        path, entry = target.file("glb", offset=index)
        path.write_bytes(_cube(metadata(context)))
        entries.append(entry)
    return NodeResult(ui={"3d": entries})


def _cube(extras: Mapping[str, str]) -> bytes:
    corners = [float(value) for corner in product((0, 1), repeat=3) for value in corner]
    indices = [int(digit) for face in _FACES.split() for digit in face]
    points = struct.pack(f"<{len(corners)}f", *corners)
    triangles = struct.pack(f"<{len(indices)}H", *indices)
    content: dict[str, Any] = {
        "asset": {"version": "2.0", "extras": dict(extras)},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "buffers": [{"byteLength": len(points) + len(triangles)}],
        "bufferViews": [
            {"buffer": 0, "byteOffset": 0, "byteLength": len(points), "target": _VERTICES},
            {"buffer": 0, "byteOffset": len(points), "byteLength": len(triangles), "target": _INDICES},
        ],
        "accessors": [
            {
                "bufferView": 0,
                "componentType": _FLOATS,
                "count": len(corners) // 3,
                "type": "VEC3",
                "min": [0.0, 0.0, 0.0],
                "max": [1.0, 1.0, 1.0],
            },
            {"bufferView": 1, "componentType": _SHORTS, "count": len(indices), "type": "SCALAR"},
        ],
    }
    text = json.dumps(content).encode()
    chunks = _chunk(_JSON, text, b" ") + _chunk(_BINARY, points + triangles, b"\0")
    return b"glTF" + struct.pack("<II", 2, 12 + len(chunks)) + chunks


def _chunk(kind: bytes, content: bytes, filler: bytes) -> bytes:
    padded = content + filler * (-len(content) % 4)
    return struct.pack("<I", len(padded)) + kind + padded


MESH_NODES: Mapping[str, NodeFunction] = {
    "EmptyLatentHunyuan3Dv2": empty_latent,
    "VAEDecodeHunyuan3D": decode,
    "VoxelToMeshBasic": to_mesh,
    "SaveGLB": save_glb,
}
