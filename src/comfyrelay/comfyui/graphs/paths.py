"""Inputs that name a file, a folder or an address: what they may hold in a tenant's graph.

Whatever a link brings is made while the graph runs, and nobody can look at it before. So such an input holds the file
itself: a placeholder of a file of the job. Where a node's definition is known it decides; else the input's name does.
"""

import re
from collections.abc import Iterator, Mapping, Set
from itertools import pairwise
from typing import Any

from comfyrelay.comfyui.graphs.explain import MODEL_INPUTS
from comfyrelay.comfyui.graphs.foreign_files import LONGEST_PATH, input_place, is_path, shown, texts_in
from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
from comfyrelay.comfyui.graphs.preflight import choices_of, inner_specs, input_specs, is_upload, specs_for

# Each run puts a folder of its own before it.
PREFIX = "filename_prefix"
# Loaders that many graphs have, for where no definition is known.
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
# What is not a file, but something about one: path_type, filename_delimiter.
_ATTRIBUTES = frozenset(
    {
        *("type", "format", "mode", "extension", "ext", "suffix", "delimiter", "separator", "padding", "digits"),
        *("encoding", "quality", "count", "index", "number", "num", "size", "limit", "depth", "order", "sort"),
        *("length", "width", "height", "scale", "weight", "strength", "opacity", "color", "style", "points"),
    }
)
# Without anything between its words; not `profile` and `curl`.
_ONE_WORD = re.compile(
    r"[a-z]+(?:path|paths|filename|folder|directory)|(?:image|video|audio|mask)(?:file|dir|url|uri)s?"
)
# Types whose values are made by a node, or are no texts.
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
# Where ComfyUI keeps what is no model, seen from its own folder.
_SERVER_FOLDER = re.compile(r"(?:\.[/\\]+)*(?:output|input|temp|user|custom_nodes)[/\\]", re.IGNORECASE)
# Names of these are links between nodes that hand over more than a text.
_TYPED_LINKS = frozenset({"filenames", "file_3d"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# The end of a name says what it is; a longer one is no input of any node.
_LONGEST_NAME = 200
_WRITE_IT = "Write the placeholder of a file of the job there."
_OWN_FILE = "Make it a property, so that the file is uploaded for the job."


def path_problems(graph: Graph, *, own: Set[str], object_info: Mapping[str, Any]) -> Iterator[str]:
    """The inputs that could name more than a file of the job, one sentence each.

    `own` are the placeholders of the job's files.
    """
    for node_id, node in graph.items():
        class_type = node["class_type"]
        definition = object_info.get(class_type)
        specs = dict(input_specs(definition))
        for name, value in node["inputs"].items():
            if isinstance(value, str) and value in own:
                continue
            # where several may define it, each must allow it
            judges: list[list[Any] | None] = [*specs_for(specs, name)] or [None]
            for spec in judges:
                why = _why_not(class_type, name, value, spec, is_known=definition is not None)
                if why is not None:
                    yield f"{input_place(class_type, node_id, name)} {why}"
                    break


def _why_not(class_type: str, name: str, value: Any, spec: list[Any] | None, *, is_known: bool) -> str | None:
    if name == PREFIX:
        return None if isinstance(value, str) else "must be a text itself: each run saves into a folder of its own."
    if is_link(value):
        return _why_not_linked(class_type, name, spec, is_known=is_known)
    text = next(texts_in(value), None)
    if text is None:
        return None
    if not isinstance(value, str) and _brings_files(class_type, spec):
        # a node takes an object in place of a choice as it is, with all the inputs in it
        return "may name any file. Write each input that belongs to it by itself."
    is_file = _names_file(class_type, name, spec, is_known=is_known)
    if not is_file or (isinstance(value, str) and _is_harmless(name if spec is None else _last(name), value, spec)):
        return None
    return f"names {shown(text)}, which is not a file of this job. {_OWN_FILE}"


def _why_not_linked(class_type: str, name: str, spec: list[Any] | None, *, is_known: bool) -> str | None:
    is_file = _names_file(class_type, name, spec, is_known=is_known) or _brings_files(class_type, spec)
    if is_file and (spec is not None or name not in _TYPED_LINKS):
        return f"is linked, so it may name any file. {_WRITE_IT}"
    if name in MODEL_INPUTS or (spec is not None and _has_models(spec)):
        return "is linked, so it may name any file. Write the name of the model there."
    return None


def _names_file(class_type: str, name: str, spec: list[Any] | None, *, is_known: bool) -> bool:
    if spec is None:
        return (not is_known and (class_type, name) in _LOADERS) or _is_path_name(name)
    if is_upload(spec) or is_path(spec):
        return True
    types = {each.strip() for each in str(spec[0]).split(",")}
    # a link of these types hands over what was loaded, and no name
    if choices_of(spec) is None and all(each in _NO_NAMES or each.startswith(_LOADED_3D) for each in types):
        return False
    return _is_path_name(_last(name)) or ("STRING" in types and _last(name) in _MEDIA)


def _brings_files(class_type: str, spec: list[Any] | None) -> bool:
    pending = inner_specs(spec) if spec is not None else []
    while pending:
        name, each = pending.pop()
        if _names_file(class_type, name, each, is_known=True):
            return True
        pending.extend(inner_specs(each))
    return False


def _last(name: str) -> str:
    """Of `images.image0`, the name that its definition has."""
    return name.rpartition(".")[2].rstrip("0123456789_")


def _words(name: str) -> list[str]:
    return [each.lower() for each in _WORD.findall(name[-_LONGEST_NAME:])]


def _is_path_name(name: str) -> bool:
    words = _words(name)
    if words[-1:] and words[-1] in _ATTRIBUTES:
        return False
    # file_name is one word to some, and imagepath to others
    pairs = map("".join, pairwise(words))
    return not {*words, *pairs}.isdisjoint(_FILES | _FOLDERS) or any(map(_ONE_WORD.fullmatch, words))


def _is_harmless(name: str, text: str, spec: list[Any] | None) -> bool:
    """Whether a literal that is no file of the job is none of another's either."""
    if spec is not None and (is_upload(spec) or is_path(spec)):
        return False
    words = {*_words(name)}
    if not text:
        # no folder within another, or no address; as a file it would be the folder itself
        return spec is not None or bool(words & (_FOLDERS | _ADDRESSES))
    is_image = name in _MEDIA and len(text) > LONGEST_PATH
    if is_image or text.lower().endswith(MODEL_SUFFIXES):
        return is_image or (words.isdisjoint(_MEDIA) and _SERVER_FOLDER.match(text) is None)
    if text.lower().endswith(MEDIA_SUFFIXES) or words & _FOLDERS:
        return False
    # a font or a table of colours that comes with the node: where its definition is known, that says so
    return _is_plain_file(text) if spec is None else text in (choices_of(spec) or ())


def _is_plain_file(text: str) -> bool:
    return re.fullmatch(r"[\w -]{1,100}\.[A-Za-z0-9]{1,10}", text) is not None


def _has_models(spec: list[Any]) -> bool:
    choices = choices_of(spec)
    return choices is not None and any(
        isinstance(each, str) and each.lower().endswith((*MODEL_SUFFIXES, *MEDIA_SUFFIXES)) for each in choices
    )
