"""Determine the fields of a node in the editor's order, and read their values from the file.

The file stores values by position. After each seed, the file has an additional value, the action after a run, which is
not sent to the server.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from comfyrelay.comfyui.editor.workflow import Slot, as_dict, as_list, type_name

_CHOOSES_INPUTS = "COMFY_DYNAMICCOMBO_V3"
_MATCHES_TYPE = "COMFY_MATCHTYPE_V3"
# After a box, the file repeats its position and size as four numbers.
_BOX, _BOX_NUMBERS = "BOUNDING_BOX", 4
# The editor stores no value for an image comparison, but always sends this value.
_COMPARISON, _COMPARED = "IMAGECOMPARE", ["", ""]
# Nodes that pass on a 3D model store how it was last viewed, but do not need this value.
_VIEW, _VIEW_INPUT = "LOAD_3D", "viewport_state"
_PLAIN_VIEW = "VIEW_OF_MODEL"
# Default values by type, for fields whose definition has no default.
_EMPTY: dict[str, Any] = {
    **{"INT": 0, "FLOAT": 0, "BOOLEAN": False, "STRING": "", "MARKDOWN": "", "TEXTAREA": ""},
    _BOX: {"x": 0, "y": 0, "width": 512, "height": 512},
    **{"BOUNDING_BOXES": [], "COLORS": [], "RANGE": {"min": 0.0, "max": 1.0}},
    "CURVE": {"points": [[0, 0], [1, 1]], "interpolation": "monotone_cubic"},
    _PLAIN_VIEW: "",
}
_FIELDS = {*_EMPTY, "COMBO", "COLOR", _CHOOSES_INPUTS}
_RENDERED = (
    "pictures that the editor renders of the 3D model. Use LoadImage with a saved picture or, if only the model is "
    "needed, Load3DAdvanced of newer ComfyUI versions"
)
# The browser creates the values of these types when it submits a graph.
_MADE_IN_BROWSER = {
    "AUDIO_RECORD": "a recording of the microphone. Use LoadAudio with a saved recording",
    "WEBCAM": "a picture of the camera. Use LoadImage with a saved picture",
    **dict.fromkeys((_VIEW, "LOAD_3D_ANIMATION"), _RENDERED),
}
SEEDS = {"seed", "noise_seed"}
ACTIONS = ("fixed", "increment", "decrement", "randomize", "increment-wrap")
_AFTER_RUN = (*ACTIONS, True, False, None)

# Tokens of a prompt with choices: escaped characters, special characters, and the text between them.
_TOKEN = re.compile(r"\\[{}|]|[{}|\\]|[^{}|\\]+")
_MARKS = ("{", "}", "|", "\\", "/*", "//")


class _Absent:
    """No value: the server uses its default."""


ABSENT = _Absent()


class StoredValue(NamedTuple):
    """The value of a field, and its place in the file: a node's values, and the position or name within them."""

    value: Any
    values: list[Any] | dict[str, Any]
    at: Any

    @property
    def is_default(self) -> bool:
        """Whether the file ends before this field."""
        return isinstance(self.values, list) and self.at >= len(self.values)

    def set(self, value: Any) -> None:
        """Change the value in the file."""
        if isinstance(self.values, list):
            self.values.extend([None] * (self.at + 1 - len(self.values)))
        self.values[self.at] = value


class Spec(NamedTuple):
    """The definition of one input. A field is an input with its own value, which a link may replace."""

    name: str
    type: str
    options: Mapping[str, Any]
    is_field: bool

    @property
    def is_forced(self) -> bool:
        """Whether the input is never a field, although its type would allow it."""
        return bool(self.options.get("forceInput"))

    @property
    def has_after_run(self) -> bool:
        given = self.options.get("control_after_generate")
        if self.type == "INT":
            return self.name.rpartition(".")[2] in SEEDS if given is None else bool(given)
        return self.type == "COMBO" and bool(given)


def read_specs(definition: Mapping[str, Any]) -> list[Spec]:
    """Return the inputs of a node in the editor's order: required, then optional."""
    inputs = as_dict(definition.get("input"))
    order = as_dict(definition.get("input_order"))
    result: list[Spec] = []
    for part in ("required", "optional"):
        specs = as_dict(inputs.get(part))
        named = [name for name in as_list(order.get(part)) if isinstance(name, str) and name in specs]
        names = [*named, *(name for name in specs if name not in named)]
        result += [_spec(name, specs[name]) for name in names]
    return result


def input_slots(specs: Sequence[Spec]) -> list[Slot]:
    """Return the inputs of a node of this class, those without a field first."""
    plain = [Slot(spec.name, spec.type) for spec in specs if not spec.is_field]
    return plain + [Slot(spec.name, spec.type, None, spec.name) for spec in specs if spec.is_field]


def count_marks(values: Iterable[Any]) -> int:
    """Count the special characters, which must be parsed one by one: a text may consist of nothing else."""
    return sum(value.count(mark) for value in values if isinstance(value, str) for mark in _MARKS)


def field_values(specs: Sequence[Spec], stored: list[Any] | dict[str, Any]) -> dict[str, StoredValue]:
    """Return the value of each field that is sent to the server."""
    if isinstance(stored, dict):
        by_name = {name: StoredValue(value, stored, name) for name, value in _by_name(specs, stored).items()}
        return by_name | _comparisons(specs)
    positions = deque(_without_forced(specs, stored))
    end = len(stored)
    found: dict[str, StoredValue] = {}
    pending = deque(_fields(specs))
    while pending:
        field = pending.popleft()
        at = positions.popleft() if positions else end
        value = _clean(field, stored[at]) if at < len(stored) else _default(field)
        if at == end:
            # The file is older than this field.
            end += 2 if field.has_after_run else 1
        elif field.has_after_run and positions and _is_after_run(stored[positions[0]]):
            positions.popleft()
        if field.type == _BOX:
            for _ in range(min(_BOX_NUMBERS, len(positions))):
                positions.popleft()
        if field.type == _CHOOSES_INPUTS:
            pending.extendleft(reversed(_inputs_of_choice(field, value)))
        if value is not ABSENT:
            found[field.name] = StoredValue(value, stored, at)
    return found | _comparisons(specs)


def stored_values(specs: Sequence[Spec], inputs: Mapping[str, Any]) -> list[Any]:
    """Return the values of a node as the editor stores them, given its inputs in a graph."""
    stored: list[Any] = []
    pending = deque(_fields(specs))
    while pending:
        field = pending.popleft()
        value = inputs.get(field.name, ABSENT)
        if isinstance(value, dict) and "__value__" in value:
            value = value["__value__"]
        elif value is ABSENT or isinstance(value, list):
            # A linked input still has a value in the file.
            value = _default(field)
        stored.append(None if value is ABSENT else value)
        if field.has_after_run:
            stored.append(ACTIONS[0])
        if field.type == _BOX:
            stored += [value[name] for name in ("x", "y", "width", "height")] if isinstance(value, dict) else []
        if field.type == _CHOOSES_INPUTS:
            pending.extendleft(reversed(_inputs_of_choice(field, value)))
    return stored


def _comparisons(specs: Iterable[Spec]) -> dict[str, StoredValue]:
    return {spec.name: StoredValue(list(_COMPARED), [], 0) for spec in specs if spec.type == _COMPARISON}


def as_shown_by_subgraph(field: StoredValue) -> StoredValue:
    """Return a field as a subgraph shows it: the editor resolves braces and comments only in a node's own field."""
    written = field.value if field.is_default else field.values[field.at]
    is_text = isinstance(written, str) and isinstance(field.value, str)
    return field._replace(value=_with_line_feeds(written)) if is_text else field


def names_with_choices(specs: Iterable[Spec], fields: Mapping[str, StoredValue]) -> list[str]:
    """Return the prompts with choices such as `{a|b}`, which the editor resolves at random for each run."""
    prompts = (spec.name for spec in specs if spec.type == "STRING" and spec.options.get("dynamicPrompts"))
    return [name for name in prompts if name in fields and _has_choice(fields[name])]


def _has_choice(field: StoredValue) -> bool:
    written = field.value if field.is_default else field.values[field.at]
    # Cleaning keeps braces only around choices, and removes the backslash of escaped characters.
    return isinstance(written, str) and "{" in written and field.value == _without_comments(_with_line_feeds(written))


def first_value(values: list[Any] | dict[str, Any]) -> Any:
    return values[0] if isinstance(values, list) and values else None


def inputs_made_in_browser(specs: Iterable[Spec]) -> dict[str, str]:
    """Return the inputs of a node whose values are never in a file, with what the values are and what to use."""
    return {spec.name: _MADE_IN_BROWSER[spec.type] for spec in specs if spec.type in _MADE_IN_BROWSER}


def as_input(value: Any) -> Any:
    """Wrap lists for the server, which would read a plain list as a link."""
    return {"__value__": value} if isinstance(value, list) else value


def with_pack_fields(
    specs: Sequence[Spec],
    stored: list[Any] | dict[str, Any],
    slots: Sequence[Slot],
    *,
    is_output: Callable[[str], bool],
) -> list[Spec]:
    """Mark the inputs for which a node pack defines its own field, such as a color or a list of styles.

    Newer files name the field of each input. In older files, such inputs have no slot, no node outputs their type, and
    there is exactly one extra value for each of them.
    """
    named = {slot.name for slot in slots if slot.widget == slot.name}
    result = [spec._replace(is_field=spec.is_field or (spec.name in named and not spec.is_forced)) for spec in specs]
    known = {slot.name for slot in slots}
    missing = {
        spec.name
        for spec in result
        if not spec.is_field and not spec.is_forced and spec.name not in known and not is_output(spec.type)
    }
    count = sum(2 if spec.has_after_run else 1 for spec in result if spec.is_field)
    if missing and isinstance(stored, list) and len(stored) == count + len(missing):
        return [spec._replace(is_field=spec.is_field or spec.name in missing) for spec in result]
    return result


def _by_name(specs: Sequence[Spec], stored: Mapping[str, Any]) -> dict[str, Any]:
    fields = list(_fields(specs))
    found = {
        field.name: _clean(field, stored[field.name]) if field.name in stored else _default(field) for field in fields
    }
    formats = [field for field in fields if isinstance(field.options.get("formats"), dict)]
    for field in formats:
        # The chosen format has its own fields.
        for more in _fields_of_format(field, found[field.name]):
            found[more.name] = stored.get(more.name, _default(more))
    if not formats:
        found |= {name: value for name, value in stored.items() if name not in found and not isinstance(value, dict)}
    return {name: value for name, value in found.items() if value is not ABSENT}


def _fields_of_format(field: Spec, value: Any) -> Iterator[Spec]:
    for stored in as_list(field.options["formats"].get(value) if isinstance(value, str) else None):
        match stored:
            case [str() as name, str() | list() as kind, *options]:
                yield _spec(name, [kind, *options])


def _is_after_run(value: Any) -> bool:
    return isinstance(value, str | bool | None) and value in _AFTER_RUN


def _without_forced(specs: Sequence[Spec], stored: list[Any]) -> Sequence[int]:
    """Return the positions of the values. Older files also have values for fields that have become plain inputs."""
    if not any(spec.is_forced for spec in specs):
        return range(len(stored))
    forced: list[bool] = []
    for spec in specs:
        if spec.is_forced or spec.is_field:
            has_after_run = spec.options.get("control_after_generate") or spec.name in SEEDS
            forced += [spec.is_forced] * (2 if has_after_run else 1)
    if len(forced) != len(stored):
        return range(len(stored))
    return [at for at, is_forced in enumerate(forced) if not is_forced]


def _fields(specs: Iterable[Spec], prefix: str = "") -> Iterator[Spec]:
    for spec in specs:
        if spec.is_field:
            yield spec._replace(name=prefix + spec.name)


def _inputs_of_choice(field: Spec, value: Any) -> list[Spec]:
    for option in as_list(field.options.get("options")):
        if isinstance(option, dict) and option.get("key") == value:
            return list(_fields(read_specs({"input": option.get("inputs")}), f"{field.name}."))
    return []


def _spec(name: str, spec: Any) -> Spec:
    if not isinstance(spec, list | tuple) or not spec:
        return Spec(name, "*", {}, is_field=False)
    options = dict(as_dict(spec[1] if len(spec) > 1 else None))
    if isinstance(spec[0], list):
        options["options"] = spec[0]
    kind = type_name(options.get("widgetType") or spec[0])
    if kind not in _FIELDS and kind not in _MADE_IN_BROWSER and type_name(spec[0]) in _EMPTY:
        # A pack draws this field itself, but its value has an ordinary type.
        kind = type_name(spec[0])
    if (kind, name) == (_VIEW, _VIEW_INPUT):
        kind = _PLAIN_VIEW
    if kind == _MATCHES_TYPE:
        kind = type_name(as_dict(options.get("template")).get("allowed_types"))
    return Spec(name, kind, options, is_field=kind in _FIELDS and not options.get("forceInput"))


def _default(field: Spec) -> Any:
    given, choices = field.options.get("default"), field.options.get("options")
    if field.type == "COMBO" and (field.options.get("multiselect") or field.options.get("multi_select")):
        return []
    if field.type == "COMBO":
        return given or (choices[0] if isinstance(choices, list) and choices else ABSENT)
    if field.type == _CHOOSES_INPUTS:
        return next((choice.get("key") for choice in as_list(choices) if isinstance(choice, dict)), ABSENT)
    if given is None:
        return deepcopy(_EMPTY[field.type]) if field.type in _EMPTY else ABSENT
    return given


def _clean(field: Spec, value: Any) -> Any:
    if field.type == "COMBO":
        return _clean_choice(field, value)
    if field.type == "STRING" and field.options.get("multiline"):
        value = "" if value is None else value if isinstance(value, str) else str(value)
        value = _with_line_feeds(value)
    if field.type == "STRING" and field.options.get("dynamicPrompts") and isinstance(value, str):
        return _without_single_choices(_without_comments(value))
    return value


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _clean_choice(field: Spec, value: Any) -> Any:
    if isinstance(value, dict) and "content" in value:
        # Lists with preview images store the choice together with its image.
        value = value["content"]
    if value is None:
        choices = field.options.get("options")
        return choices[0] if isinstance(choices, list) and choices else None
    if field.name == "sampler_name" and isinstance(value, str):
        # The first versions of ComfyUI used function names for samplers.
        return value.removeprefix("sample_")
    return value


def _without_comments(text: str) -> str:
    """Remove comments: from `/*` to `*/`, and from `//` to the end of the line."""
    parts: list[str] = []
    at = 0
    # Positions of the next comment of each kind. No part is searched twice, because a text may consist of comments.
    long, short = text.find("/*"), text.find("//")
    while long != -1 or short != -1:
        is_long = short == -1 or -1 < long < short
        begin = long if is_long else short
        end = text.find("*/", begin + 2) if is_long else text.find("\n", begin)
        if is_long and end == -1:
            # This comment has no end, so neither do later ones.
            long = -1
            continue
        parts.append(text[at:begin])
        at = len(text) if end == -1 else end + 2 if is_long else end
        long = text.find("/*", at) if -1 < long < at else long
        short = text.find("//", at) if -1 < short < at else short
    return "".join((*parts, text[at:]))


def _without_single_choices(text: str) -> str:
    """Resolve braces and escaped characters as the editor does, unless the text has a choice such as `{a|b}`.

    A text with choices is not changed, because each job makes its own choices.
    """
    parts: list[str] = []
    depth = 0
    for token in _TOKEN.findall(text):
        if token == "|" and depth:
            return text
        if token == "{":
            depth += 1
        elif token == "}" and depth:
            depth -= 1
        else:
            parts.append(token[1] if len(token) == 2 and token[0] == "\\" else token)
    return "".join(parts)
