"""The editor's own export is the measure: every public template gives the same graph, input by input."""

import json
from functools import cache
from typing import Any

import pytest

from comfyrelay.comfy.editor.convert import convert_workflow
from comfyrelay.errors import NotInstalled
from tests.comfy.editor.templates import DEFINITIONS, EXPORTS, normal_form, templates, versions

RECORDED: dict[str, Any] = json.loads(EXPORTS.read_text(encoding="utf-8"))


@cache
def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    return found


def test_the_templates_are_those_that_the_editor_was_asked_about() -> None:
    assert versions() == RECORDED["versions"], "make them anew: python -m tests.comfy.editor --help"


@pytest.mark.parametrize(("name", "workflow"), [pytest.param(*each, id=each[0]) for each in templates()])
def test_a_template_is_converted_as_the_editor_does_it(name: str, workflow: dict[str, Any]) -> None:
    expected = RECORDED["exports"][name]
    if expected is None:
        with pytest.raises(NotInstalled):
            convert_workflow(workflow, definitions())
    else:
        assert normal_form(convert_workflow(workflow, definitions()), definitions()) == expected
