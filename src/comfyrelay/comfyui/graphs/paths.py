"""Check inputs that name a file, folder or address in a tenant's graph.

A linked value is computed while the graph runs and cannot be checked in advance. Such an input must therefore contain
the placeholder of a file of the job. These inputs are recognized by the node's definition or, without a definition, by
the input's name.
"""

import re
from collections.abc import Iterator, Mapping, Set
from itertools import pairwise
from typing import Any

from comfyrelay.comfyui.graphs.explain import MODEL_INPUTS
from comfyrelay.comfyui.graphs.foreign_files import LONGEST_PATH, MAKE_PROPERTY, input_place, is_path, quoted
from comfyrelay.comfyui.graphs.graph import Graph, is_link, texts_in
from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
from comfyrelay.comfyui.graphs.preflight import choices_of, inner_specs, input_specs, is_upload, specs_for

# Each run puts its own folder in front of this input.
PREFIX = "filename_prefix"
# Common loaders, for nodes without a known definition.
_LOADERS = {
    ("LoadImage", "image"),
    ("LoadImageMask", "image"),
    ("LoadImageOutput", "image"),
    ("LoadVideo", "file"),
    ("LoadAudio", "audio"),
    ("LoadLatent", "latent"),
    ("Load3D", "model_file"),
    ("Load3DAnimation", "model_file"),
    ("VHS_LoadVideo", "video"),
    ("VHS_LoadVideoFFmpeg", "video"),
    ("VHS_LoadAudioUpload", "audio"),
}
_FOLDERS = frozenset({"dir", "dirs", "directory", "directories", "folder", "folders", "subfolder", "subdirectory"})
_ADDRESSES = frozenset({"url", "urls", "uri"})
_FILES = frozenset(
    {
        *("path", "paths", "file", "files", "filename", "filenames", "filepath", "filepaths", "filelist"),
        *("imagename", "videoname", "audioname", "glob", *_ADDRESSES),
    }
)
_MEDIA = frozenset({"image", "images", "video", "videos", "audio", "mask", "latent", "mesh"})
# A name that ends with one of these words refers to an attribute, not to a file: path_type, filename_delimiter.
_ATTRIBUTES = frozenset(
    {
        *("type", "format", "mode", "extension", "ext", "suffix", "delimiter", "separator", "padding", "digits"),
        *("encoding", "quality", "count", "index", "number", "num", "size", "limit", "depth", "order", "sort"),
        *("length", "width", "height", "scale", "weight", "strength", "opacity", "color", "style", "points"),
    }
)
# Compound words without a separator; excludes `profile` and `curl`.
_ONE_WORD = re.compile(
    r"[a-z]+(?:path|paths|filename|folder|directory)|(?:image|video|audio|mask)(?:file|dir|url|uri)s?"
)
# Types whose values a node computes or that are not texts.
_NO_NAMES = frozenset(
    {
        *("INT", "FLOAT", "BOOLEAN", "NUMBER", "COLOR", "IMAGE", "MASK", "LATENT", "VIDEO", "AUDIO", "MESH", "VOXEL"),
        *("MODEL", "CLIP", "VAE", "CONDITIONING", "CONTROL_NET", "STYLE_MODEL", "CLIP_VISION", "CLIP_VISION_OUTPUT"),
        *("GLIGEN", "UPSCALE_MODEL", "LORA_MODEL", "NOISE", "GUIDER", "SAMPLER", "SIGMAS", "HOOKS", "BBOX", "SEGS"),
        *("POINT", "SPLINE", "SVG", "PHOTOMAKER", "WEBCAM", "VHS_FILENAMES", "VHS_AUDIO", "VHS_VIDEOINFO"),
        *("OPENAI_INPUT_FILES", "GEMINI_INPUT_FILES"),
    }
)
_LOADED_3D = "FILE_3D"
# ComfyUI's folders without models, relative to its base folder.
_SERVER_FOLDER = re.compile(r"(?:\.[/\\]+)*(?:output|input|temp|user|custom_nodes)[/\\]", re.IGNORECASE)
# Links to inputs with these names carry loaded data rather than a text.
_TYPED_LINKS = frozenset({"filenames", "file_3d"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Only the end of a name is checked. No real node has a longer input name.
_LONGEST_NAME = 200
_USE_PLACEHOLDER = "Use the placeholder of a file of the job."


def path_problems(graph: Graph, *, own: Set[str], object_info: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each input that could name a file other than the job's own.

    `own` are the placeholders of the job's files.
    """
    for node_id, node in graph.items():
        class_type = node["class_type"]
        definition = object_info.get(class_type)
        specs = dict(input_specs(definition))
        for name, value in node["inputs"].items():
            if isinstance(value, str) and value in own:
                continue
            # If several specs may define the input, each must allow it.
            candidates: list[list[Any] | None] = [*specs_for(specs, name)] or [None]
            for spec in candidates:
                why = _why_not(class_type, name, value, spec, is_known=definition is not None)
                if why is not None:
                    yield f"{input_place(class_type, node_id, name)} {why}"
                    break


def _why_not(class_type: str, name: str, value: Any, spec: list[Any] | None, *, is_known: bool) -> str | None:
    if name == PREFIX:
        return None if isinstance(value, str) else "must be a literal text: each run saves into its own folder."
    if is_link(value):
        return _why_not_linked(class_type, name, spec, is_known=is_known)
    text = next(texts_in(value), None)
    if text is None:
        return None
    if not isinstance(value, str) and _has_file_inputs(class_type, spec):
        # A node accepts an object in place of a choice, with all its nested inputs.
        return "may name any file. Set each of its inputs separately."
    is_file = _names_file(class_type, name, spec, is_known=is_known)
    base_name = name if spec is None else _base_name(name)
    if not is_file or (isinstance(value, str) and _is_harmless(base_name, value, spec)):
        return None
    return f"names {quoted(text)}, which is not a file of this job. {MAKE_PROPERTY}"


def _why_not_linked(class_type: str, name: str, spec: list[Any] | None, *, is_known: bool) -> str | None:
    is_file = _names_file(class_type, name, spec, is_known=is_known) or _has_file_inputs(class_type, spec)
    if is_file and (spec is not None or name not in _TYPED_LINKS):
        return f"is linked, so it may name any file. {_USE_PLACEHOLDER}"
    if name in MODEL_INPUTS or (spec is not None and _has_models(spec)):
        return "is linked, so it may name any file. Set the name of the model."
    return None


def _names_file(class_type: str, name: str, spec: list[Any] | None, *, is_known: bool) -> bool:
    if spec is None:
        return (not is_known and (class_type, name) in _LOADERS) or _is_path_name(name)
    if is_upload(spec) or is_path(spec):
        return True
    types = {type_.strip() for type_ in str(spec[0]).split(",")}
    # A link of these types carries loaded data, not a name.
    if choices_of(spec) is None and all(type_ in _NO_NAMES or type_.startswith(_LOADED_3D) for type_ in types):
        return False
    return _is_path_name(_base_name(name)) or ("STRING" in types and _base_name(name) in _MEDIA)


def _has_file_inputs(class_type: str, spec: list[Any] | None) -> bool:
    pending = inner_specs(spec) if spec is not None else []
    while pending:
        name, inner = pending.pop()
        if _names_file(class_type, name, inner, is_known=True):
            return True
        pending.extend(inner_specs(inner))
    return False


def _base_name(name: str) -> str:
    """Return the name without its prefix and number: `image` for `images.image0`."""
    return name.rpartition(".")[2].rstrip("0123456789_")


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name[-_LONGEST_NAME:])]


def _is_path_name(name: str) -> bool:
    words = _words(name)
    if words[-1:] and words[-1] in _ATTRIBUTES:
        return False
    # Some nodes separate words (file_name), others do not (imagepath).
    pairs = map("".join, pairwise(words))
    return not {*words, *pairs}.isdisjoint(_FILES | _FOLDERS) or any(map(_ONE_WORD.fullmatch, words))


def _is_harmless(name: str, text: str, spec: list[Any] | None) -> bool:
    """Whether a literal that is not a file of this job cannot name a file of another job."""
    if spec is not None and (is_upload(spec) or is_path(spec)):
        return False
    words = {*_words(name)}
    if not text:
        # An empty text means no subfolder or address. As a file name, it would stand for the folder itself.
        return spec is not None or bool(words & (_FOLDERS | _ADDRESSES))
    is_image = name in _MEDIA and len(text) > LONGEST_PATH
    if is_image or text.lower().endswith(MODEL_SUFFIXES):
        return is_image or (words.isdisjoint(_MEDIA) and _SERVER_FOLDER.match(text) is None)
    if text.lower().endswith(MEDIA_SUFFIXES) or words & _FOLDERS:
        return False
    if spec is None:
        return re.fullmatch(r"[\w -]{1,100}\.[A-Za-z0-9]{1,10}", text) is not None
    # A font or color table that comes with the node is one of the node's choices.
    return text in (choices_of(spec) or ())


def _has_models(spec: list[Any]) -> bool:
    choices = choices_of(spec)
    return choices is not None and any(
        isinstance(choice, str) and choice.lower().endswith((*MODEL_SUFFIXES, *MEDIA_SUFFIXES)) for choice in choices
    )
