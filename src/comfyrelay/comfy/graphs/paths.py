"""Inputs that name a file, a folder or an address: what they may hold in a tenant's graph.

Whatever a link brings is made while the graph runs, and nobody can look at it before. So such an input holds the file
itself: a placeholder of a file of the job. Where a node's definition is known it decides; else the input's name does.
"""

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from comfyrelay.comfy.graphs.explain import MODEL_INPUTS
from comfyrelay.comfy.graphs.foreign import LONGEST_PATH, input_place, is_path, shown, texts_in
from comfyrelay.comfy.graphs.graph import Graph, is_link
from comfyrelay.comfy.graphs.hash import MODEL_SUFFIXES
from comfyrelay.comfy.graphs.nodes import MEDIA_SUFFIXES
from comfyrelay.comfy.graphs.preflight import choices_of, input_specs, is_upload

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
_FILES = frozenset(
    {
        *("path", "paths", "file", "files", "filename", "filenames", "filepath", "filepaths", "filelist"),
        *("imagename", "videoname", "audioname", "glob", "url", "urls", "uri"),
    }
)
_MEDIA = frozenset({"image", "images", "video", "videos", "audio", "mask", "latent", "mesh"})
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
            why = _why_not(class_type, name, value, specs.get(name), is_known=definition is not None)
            if why is not None:
                yield f"{input_place(class_type, node_id, name)} {why}"


def _why_not(class_type: str, name: str, value: Any, spec: list[Any] | None, *, is_known: bool) -> str | None:
    if name == PREFIX:
        return None if isinstance(value, str) else "must be a text itself: each run saves into a folder of its own."
    if is_link(value):
        return _why_not_linked(class_type, name, spec, is_known=is_known)
    text = next(texts_in(value), None)
    if text is None or not _names_file(class_type, name, spec, is_known=is_known):
        return None
    if isinstance(value, str) and _is_harmless(name, value, spec):
        return None
    return f"names {shown(text)}, which is not a file of this job. {_OWN_FILE}"


def _why_not_linked(class_type: str, name: str, spec: list[Any] | None, *, is_known: bool) -> str | None:
    if _names_file(class_type, name, spec, is_known=is_known) and (spec is not None or name not in _TYPED_LINKS):
        return f"is linked, so it may name any file. {_WRITE_IT}"
    if name in MODEL_INPUTS or (spec is not None and _has_models(spec)):
        return "is linked, so it may name any file. Write the name of the model there."
    return None


def _names_file(class_type: str, name: str, spec: list[Any] | None, *, is_known: bool) -> bool:
    if spec is None:
        return (not is_known and (class_type, name) in _LOADERS) or _is_path_name(name)
    if is_upload(spec) or is_path(spec):
        return True
    # a link of another type hands over what was loaded, and no name
    if choices_of(spec) is None and spec[0] not in ("STRING", "*"):
        return False
    return _is_path_name(name) or (spec[0] == "STRING" and name in _MEDIA)


def _is_path_name(name: str) -> bool:
    words = [each.lower() for each in _WORD.findall(name[-_LONGEST_NAME:])]
    ends = {*words[-1:], "".join(words[-2:])}
    # path_prefix, file_name_prefix
    of_prefix = {*words[-2:-1], "".join(words[-3:-1])} if words[-1:] == ["prefix"] else set()
    return not (ends | of_prefix).isdisjoint(_FILES | _FOLDERS)


def _is_harmless(name: str, text: str, spec: list[Any] | None) -> bool:
    """Whether a literal that is no file of the job is none of another's either."""
    if spec is not None and (is_upload(spec) or is_path(spec)):
        return False
    if not text or (name in _MEDIA and len(text) > LONGEST_PATH):
        return True
    if text.lower().endswith(MODEL_SUFFIXES):
        return True
    if text.lower().endswith(MEDIA_SUFFIXES) or {each.lower() for each in _WORD.findall(name)} & _FOLDERS:
        return False
    choices = choices_of(spec) if spec is not None else None
    if choices is not None:
        return text in choices
    # a font or a table of colours that comes with the node: where its definition is known, that says so
    return spec is None and _is_plain_file(text)


def _is_plain_file(text: str) -> bool:
    return re.fullmatch(r"[\w -]{1,100}\.[A-Za-z0-9]{1,10}", text) is not None


def _has_models(spec: list[Any]) -> bool:
    choices = choices_of(spec)
    return choices is not None and any(
        isinstance(each, str) and each.lower().endswith((*MODEL_SUFFIXES, *MEDIA_SUFFIXES)) for each in choices
    )
