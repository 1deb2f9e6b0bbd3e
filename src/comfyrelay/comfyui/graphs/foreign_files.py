"""Find files in a graph that belong to another job or to the machine.

A graph may name models, and files uploaded for its job. ComfyUI itself follows `../`, absolute paths and `x.png
[output]`, so without this check, any tenant could read other tenants' files.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link, texts_in
from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
from comfyrelay.comfyui.graphs.placeholders import Placeholders, placeholders_of
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload, options_of

# All our uploads go into one folder, so that they are easy to find and clean up.
UPLOAD_FOLDER = "comfyrelay"

# Replaces the job's own file while the text around it is checked.
_OWN = "own"
# ComfyUI does not require a space before these marks.
_MARKS = ("[input]", "[output]", "[temp]")
_QUOTES = "\"'` \t"
# `..` as a path component at any position; "wait...", "and/or" and "1../2" do not contain one.
_BEFORE, _AFTER = r"(?<![^\s/\\\"'`(\[{,;:=|<>])", r"(?![^\s/\\\"'`)\]},;:|<>])"
_PARENT = re.compile(rf"{_BEFORE}\.\.[/\\]|[/\\]\.\.{_AFTER}|^\.\.$")
_FILE_URL = re.compile(r"\bfile:[/\\]", re.IGNORECASE)
_HOME_DRIVE_OR_SHARE = re.compile(r"~[\w.-]*[/\\]|~$|[A-Za-z]:[/\\]|\\\\\S|file:\S", re.IGNORECASE)
# A prompt may start with a slash ("/imagine a cat"); a path has another slash or a file suffix.
_ABSOLUTE = re.compile(r"/\S*$|/+[^\s/]+/\S|/+[^\s/].*\.[A-Za-z]\w{1,9}$")
_WEB = re.compile(r"https?://\S+$", re.IGNORECASE)
# Case-insensitive, like the file systems of Windows and macOS.
_OUR_FOLDER = re.compile(rf"(?:^|[/\\]){UPLOAD_FOLDER}(?:[/\\]|$)", re.IGNORECASE)
_SPACE = re.compile(r"\s")
_LONGEST_SUFFIX = max(map(len, MEDIA_SUFFIXES))
# Linux does not allow longer paths. Longer texts that start with a slash may be base64 image data.
LONGEST_PATH = 4096
# Number of problems to report. A graph can have a hundred thousand.
MAX_PROBLEMS = 10
MAKE_PROPERTY = "Make it a property, so that the file is uploaded for the job."
# The option with which the most common video node pack marks paths.
PATH_MARK = "vhs_path_extensions"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Input:
    """An input of a node, as far as its definition is known."""

    where: str
    is_file: bool = False
    has_choices: bool = False


def foreign_files(graph: Graph, *, own: Collection[str], object_info: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each file in a graph that is neither a model nor a file of its job.

    `own` are the placeholders of the job's files. Nodes missing in `object_info` are judged by their texts.
    """
    return list(islice(_foreign_files(graph, own=own, object_info=object_info), MAX_PROBLEMS))


def _foreign_files(graph: Graph, *, own: Collection[str], object_info: Mapping[str, Any]) -> Iterator[str]:
    files = frozenset(filter(None, own))
    placeholders = placeholders_of(files)
    for node_id, node in graph.items():
        for field, value in _inputs(node_id, node, object_info):
            if field.is_file and is_link(value):
                yield f"{field.where} is linked, so it may name any file. {MAKE_PROPERTY}"
            for text in texts_in(value):
                if text not in files and (why := _why_foreign(field, text, placeholders)) is not None:
                    yield f"{field.where} names {quoted(text)}, {why}. {MAKE_PROPERTY}"


def node_place(class_type: str, node_id: str) -> str:
    return f"{_short(class_type)} ({_short(node_id)})"


def input_place(class_type: str, node_id: str, name: str) -> str:
    return f"{node_place(class_type, node_id)}: input '{_short(name)}'"


def quoted(text: str) -> str:
    return f"'{_short(text)}'"


def _inputs(node_id: str, node: dict[str, Any], object_info: Mapping[str, Any]) -> Iterator[tuple[_Input, Any]]:
    specs = dict(input_specs(object_info.get(node["class_type"])))
    for name, value in node["inputs"].items():
        if name == "filename_prefix" and isinstance(value, str):
            # Replaced before the run.
            continue
        spec = specs.get(name)
        yield (
            _Input(
                where=input_place(node["class_type"], node_id, name),
                is_file=spec is not None and (is_upload(spec) or is_path(spec)),
                has_choices=spec is not None and choices_of(spec) is not None,
            ),
            value,
        )


def _why_foreign(field: _Input, text: str, own: Placeholders) -> str | None:
    if field.is_file:
        return "which is not a file of this job"
    around = own.replace(text, lambda _: _OWN)
    if field.has_choices and _is_media(around.rstrip()):
        return "which is not a file of this job"
    # Some nodes take one path per line. Equal lines are checked once: a text may have millions of empty lines.
    return next(filter(None, map(_why_path, dict.fromkeys(around.splitlines()))), None)


def _why_path(line: str) -> str | None:
    text = line.strip(_QUOTES)
    if text.endswith(_MARKS):
        return "a file in a server folder"
    # `in` takes a fraction of the time of a regular expression, and a text may have millions of characters.
    has_parent = ".." in text and _PARENT.search(text)
    is_absolute = len(text) <= LONGEST_PATH and _ABSOLUTE.match(text)
    if is_absolute or has_parent or (":" in text and _FILE_URL.search(text)) or _HOME_DRIVE_OR_SHARE.match(text):
        return "a path on the server"
    has_slash = "/" in text or "\\" in text
    # Dynamic prompts have their own patterns: __animals/*__.
    is_pattern = has_slash and "*" in text and not text.startswith("__") and len(text) <= LONGEST_PATH
    if is_pattern and not _SPACE.search(text):
        return "a pattern that matches files on the server"
    if UPLOAD_FOLDER in text.lower() and _OUR_FOLDER.search(text) and not _SPACE.search(text):
        return "a folder with files of other jobs"
    if _is_media(text) and (has_slash or not _SPACE.search(text)) and not _WEB.match(text):
        return "which is not a file of this job"
    return None


def _is_media(text: str) -> bool:
    """Whether a text ends with a media suffix. A suffix alone does not count, because savers offer it as a choice."""
    end = text[-_LONGEST_SUFFIX - 1 :].lower()
    return end.endswith(MEDIA_SUFFIXES) and end not in MEDIA_SUFFIXES


def is_path(spec: list[Any]) -> bool:
    """Whether a text input is a path, according to its definition."""
    return PATH_MARK in options_of(spec)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"
