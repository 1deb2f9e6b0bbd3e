"""The nodes and models of the workers that run the graphs of clients, in the format of ComfyUI's lists."""

import asyncio
import json
from collections.abc import Container, Mapping
from typing import Any

import orjson

from comfyrelay.comfyui.graphs.node_definition_checks import SCRIPT_PACK
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload, options_of
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.comfyui_api.input_files import InputFiles

# The input that lists the files of each model folder, by class.
FOLDERS: Mapping[str, tuple[str, str]] = {
    "checkpoints": ("CheckpointLoaderSimple", "ckpt_name"),
    "clip_vision": ("CLIPVisionLoader", "clip_name"),
    "controlnet": ("ControlNetLoader", "control_net_name"),
    "diffusion_models": ("UNETLoader", "unet_name"),
    "gligen": ("GLIGENLoader", "gligen_name"),
    "hypernetworks": ("HypernetworkLoader", "hypernetwork_name"),
    "loras": ("LoraLoader", "lora_name"),
    "photomaker": ("PhotoMakerLoader", "photomaker_model_name"),
    "style_models": ("StyleModelLoader", "style_model_name"),
    "text_encoders": ("CLIPLoader", "clip_name"),
    "upscale_models": ("UpscaleModelLoader", "model_name"),
    "vae": ("VAELoader", "vae_name"),
}
_MARKS = {"image_upload": "image/", "video_upload": "video/", "audio_upload": "audio/"}


class Nodes:
    def __init__(
        self, definitions: NodeDefinitionService, input_files: InputFiles, *, script_packs: Container[str]
    ) -> None:
        """`script_packs` are the node packs whose scripts the editor has."""
        self._script_packs = script_packs
        self._definitions = definitions
        self._input_files = input_files
        # The merged definitions, and the JSON of each class, except classes that list files.
        self._encoded: tuple[Mapping[str, Any], Mapping[str, bytes]] | None = None
        self._encoding = asyncio.Lock()

    async def object_info(self, tenant_id: str) -> bytes:
        """Return the JSON of all definitions. Inputs for files list the tenant's uploads."""
        definitions = await self._all()
        async with self._encoding:
            if self._encoded is None or self._encoded[0] is not definitions:
                self._encoded = definitions, await asyncio.to_thread(self._encode, definitions)
            encoded = self._encoded[1]
        names = await self._input_files.names(tenant_id)
        return await asyncio.to_thread(self._join, definitions, encoded, names)

    async def node_info(self, tenant_id: str, class_type: str) -> dict[str, Any]:
        """Return the definition of one class, or an empty object."""
        definition = (await self._all()).get(class_type)
        if not isinstance(definition, dict):
            return {}
        names = await self._input_files.names(tenant_id)
        return {class_type: self._describe(class_type, _list_files(definition, names))}

    async def models(self, folder: str) -> list[str] | None:
        """Return the model files of a folder; `None` if there is no such folder."""
        if folder not in FOLDERS:
            return None
        class_type, name = FOLDERS[folder]
        spec = dict(input_specs((await self._all()).get(class_type))).get(name)
        return [choice for choice in (choices_of(spec) if spec else None) or () if isinstance(choice, str)]

    async def _all(self) -> Mapping[str, Any]:
        definitions, _ = await self._definitions.load(of_clients=True)
        return definitions or {}

    def _encode(self, definitions: Mapping[str, Any]) -> dict[str, bytes]:
        return {
            name: _json(self._describe(name, definition))
            for name, definition in definitions.items()
            if not any(is_upload(spec) for _, spec in input_specs(definition))
        }

    def _join(self, definitions: Mapping[str, Any], encoded: Mapping[str, bytes], names: Mapping[str, str]) -> bytes:
        parts = [
            orjson.dumps(name)
            + b":"
            + (encoded[name] if name in encoded else _json(self._describe(name, _list_files(definition, names))))
            for name, definition in definitions.items()
        ]
        return b"{" + b",".join(parts) + b"}"

    def _describe(self, name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
        """Return a definition with all fields that the editor requires to show a node. The name of the node's pack is
        kept only if the editor lacks the scripts of the pack, because it marks such nodes."""
        outputs = definition.get("output") or []
        found = {
            "name": name,
            "display_name": name,
            "description": "",
            "category": "",
            "python_module": "nodes",
            "output_name": [str(output) for output in outputs],
            "output_is_list": [False] * len(outputs),
            "output_node": False,
            **definition,
        }
        if found.get(SCRIPT_PACK) in self._script_packs:
            del found[SCRIPT_PACK]
        return found


def _json(value: object) -> bytes:
    """Encode a definition. Only the slower encoder takes integers beyond 64 bits, such as the limits of
    `TrimAudioDuration`."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def _list_files(definition: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a definition whose inputs for files list these files. Like ComfyUI, it lists no files in subfolders."""
    inputs = definition.get("input")
    if not isinstance(inputs, dict):
        return definition
    filled = {
        part: {
            name: _listing(spec, names) if isinstance(spec, list) and spec and is_upload(spec) else spec
            for name, spec in specs.items()
        }
        if part in ("required", "optional") and isinstance(specs, dict)
        else specs
        for part, specs in inputs.items()
    }
    return {**definition, "input": filled}


def _listing(spec: list[Any], names: Mapping[str, str]) -> list[Any]:
    options = options_of(spec)
    kinds = tuple(kind for mark, kind in _MARKS.items() if options.get(mark)) or ("",)
    files = sorted(name for name, mime_type in names.items() if mime_type.startswith(kinds) and "/" not in name)
    if isinstance(spec[0], list):
        return [files, *spec[1:]]
    if spec[0] == "COMBO":
        return [spec[0], {**options, "options": files}, *spec[2:]]
    return spec
