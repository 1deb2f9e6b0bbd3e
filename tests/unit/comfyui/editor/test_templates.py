"""Compared with the editor's own export, every public template gives the same graph, input by input."""

import json
from functools import cache
from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.errors import NotInstalled
from tests.unit.comfyui.editor.templates import DEFINITIONS, EXPORTS, normal_form, templates, versions

RECORDED: dict[str, Any] = json.loads(EXPORTS.read_text(encoding="utf-8"))


@cache
def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    return found


def test_recorded_exports_match_the_installed_templates() -> None:
    assert versions() == RECORDED["versions"], "make them anew: python -m tests.unit.comfyui.editor --help"


def test_uncompared_templates_name_their_missing_nodes() -> None:
    uncompared = {name: each for name, each in RECORDED["exports"].items() if not isinstance(each, str)}
    assert len(uncompared) == 26
    for name, missing in uncompared.items():
        assert missing, name
        assert not definitions().keys() & set(missing), name


@pytest.mark.parametrize(("name", "workflow"), [pytest.param(*template, id=template[0]) for template in templates()])
def test_template_is_converted_as_the_editor_does_it(name: str, workflow: dict[str, Any]) -> None:
    expected = RECORDED["exports"][name]
    if isinstance(expected, list):
        with pytest.raises(NotInstalled) as refused:
            convert_workflow(workflow, definitions())
        assert sorted(refused.value.node_types) == expected
    else:
        assert normal_form(convert_workflow(workflow, definitions()), definitions()) == expected
