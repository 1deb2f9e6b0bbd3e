"""Every public template is converted to the same graph as the editor's export, input by input."""

import json
from functools import cache
from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.errors import NotInstalled
from tests.unit.comfyui.editor.templates import DEFINITIONS, EXPORTS, fingerprint, load_template, versions

RECORDED: dict[str, Any] = json.loads(EXPORTS.read_text(encoding="utf-8"))


@cache
def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    return found


def test_recorded_exports_match_the_installed_templates() -> None:
    assert versions() == RECORDED["versions"], (
        "The exports are of other versions: run python -m tests.unit.comfyui.editor --help to record them again."
    )


def test_uncompared_templates_name_their_missing_nodes() -> None:
    uncompared = {name: export for name, export in RECORDED["exports"].items() if not isinstance(export, str)}
    assert len(uncompared) == 26
    for name, missing in uncompared.items():
        assert missing, name
        assert not definitions().keys() & set(missing), name


@pytest.mark.parametrize("name", RECORDED["exports"])
def test_template_is_converted_as_in_the_editor(name: str) -> None:
    workflow, expected = load_template(name), RECORDED["exports"][name]
    if isinstance(expected, list):
        with pytest.raises(NotInstalled) as refused:
            convert_workflow(workflow, definitions())
        assert sorted(refused.value.node_types) == expected
    else:
        assert fingerprint(convert_workflow(workflow, definitions()), definitions()) == expected
