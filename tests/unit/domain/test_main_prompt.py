"""The main prompt of a job: one rule for job lists and the gallery."""

from typing import Any

import pytest

from comfyrelay.domain.gallery import main_prompt, prompt_placeholder
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.properties import Role


def snapshot(**values: Any) -> JobPayload:
    return JobPayload(
        graph_path="g",
        values=values,
        assets=[],
        output_node_id=None,
        output_extension="png",
        output_mime_type="image/png",
    )


@pytest.mark.parametrize(
    ("values", "placeholder", "prompt"),
    [
        ({"{{PROMPT_NEGATIVE}}": "blurry", "{{PROMPT}}": "a cat"}, None, "a cat"),
        ({"{{PROMPT_STYLE}}": "ink", "{{TEXT_2}}": " a cat\n at night "}, "{{TEXT_2}}", "a cat at night"),
        ({"{{PROMPT}}": "a cat"}, "{{GONE}}", "a cat"),
        ({"{{TEXT}}": "a cat", "{{PROMPT}}": 7}, None, None),
    ],
)
def test_prompt_is_found_by_role_and_then_by_name(
    values: dict[str, Any], placeholder: str | None, prompt: str | None
) -> None:
    assert main_prompt(snapshot(**values), placeholder) == prompt


def test_property_with_the_prompt_role_is_the_prompt() -> None:
    text = {"key": "a", "type": "text", "placeholder": "{{A}}", "user_configurable": True}
    assert prompt_placeholder([text, {**text, "placeholder": "{{B}}", "role": Role.PROMPT}]) == "{{B}}"
    assert prompt_placeholder([text]) is None
