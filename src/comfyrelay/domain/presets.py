"""Presets: values kept under a name, for workflows that need not have all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.properties import Property, problem_with

__all__ = ["Applied", "apply_preset"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """`ignored` are the preset's keys that mean nothing to the workflow."""

    values: Mapping[str, Any]
    ignored: Sequence[str]

    @property
    def remark(self) -> str:
        """What a person should know; empty when all of it was taken."""
        return f"Not in this workflow, and ignored: {', '.join(self.ignored)}." if self.ignored else ""


def apply_preset(preset: Mapping[str, Any], properties: Sequence[Property]) -> Applied:
    """The properties of a graph are named after its nodes: `steps` is also meant for `ksampler_steps`, wherever the
    value is one that such a property takes, and for both samplers where there are two."""
    configurable = [each for each in properties if each.user_configurable and not each.is_asset]
    keys = {each.key for each in configurable}
    values: dict[str, Any] = {}
    ignored = []
    for key, value in preset.items():
        alike = [each.key for each in configurable if each.key.endswith(f"_{key}") and not problem_with(each, value)]
        meant = [key] if key in keys else alike
        if not meant:
            ignored.append(key)
        # what is named in full beats what is meant, too
        values.update({each: value for each in meant if each not in preset or each == key})
    return Applied(values=values, ignored=ignored)
