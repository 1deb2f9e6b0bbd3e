"""A form field offers the files of one model folder, and trigger words are read from a file."""

import json
from typing import Any

import pytest

from comfyrelay.comfyui.client.trigger_words import MAX_WORD_LENGTH, MAX_WORDS, model_title, trigger_words
from comfyrelay.desk.models.browser import folder_of, model_field, offers
from comfyrelay.domain.properties import Property, PropertyType, Role
from comfyrelay.errors import InvalidInput, NotFound

NAMES = {"checkpoints": ["base.safetensors", "ink.safetensors"], "loras": ["ink.safetensors", "anna.safetensors"]}


def field(**fields: Any) -> Property:
    given = {"key": "lora", "type": PropertyType.CHOICE, "placeholder": "x", "user_configurable": True, **fields}
    return Property(**given)


def test_folder_with_the_most_choices_is_chosen() -> None:
    assert folder_of(field(choices=["ink.safetensors", "anna.safetensors"]), NAMES) == "loras"
    assert folder_of(field(choices=["ink.safetensors", "base.safetensors", "None"]), NAMES) == "checkpoints"
    assert folder_of(field(choices=["euler", "ddim"]), NAMES) is None
    assert folder_of(field(choices=["euler"]), {}) is None


def test_text_field_offers_the_folder_of_its_default() -> None:
    text = field(type=PropertyType.TEXT, role=Role.MODEL, default_value="anna.safetensors")
    assert folder_of(text, NAMES) == "loras"
    assert offers(text, "ink.safetensors")
    assert not offers(field(choices=["anna.safetensors"]), "ink.safetensors")


def test_only_a_field_of_the_form_that_names_models_is_found() -> None:
    properties = [
        field(),
        field(key="size", type=PropertyType.NUMBER),
        field(key="prompt", type=PropertyType.TEXT, role=Role.PROMPT),
        field(key="fixed", user_configurable=False),
    ]
    assert model_field(properties, "lora").key == "lora"
    for key in ("size", "prompt"):
        with pytest.raises(InvalidInput):
            model_field(properties, key)
    for key in ("fixed", "nothing"):
        with pytest.raises(NotFound):
            model_field(properties, key)


def test_trigger_phrase_comes_before_frequent_tags() -> None:
    tags = {"10_anna": {"hat": 2, " anna person ": 9, "wrong": "many"}, "5_more": {"hat": 8}, "none": None}
    metadata = {"modelspec.trigger_phrase": "anna\n person", "ss_tag_frequency": json.dumps(tags)}
    assert trigger_words(metadata) == ["anna person", "hat"]
    assert trigger_words({"ss_tag_frequency": tags}) == ["hat", "anna person"]


@pytest.mark.parametrize("tags", ["", "no json", "[1]", "7", None, 7, "[" * 100_000])
def test_unreadable_tags_are_omitted(tags: object) -> None:
    assert trigger_words({"ss_tag_frequency": tags, "modelspec.trigger_phrase": 7}) == []


def test_words_are_limited_in_number_and_length() -> None:
    tags = {"1_x": {f"tag {number}": number for number in range(1000)} | {"x" * 10_000: 5000}}
    words = trigger_words({"ss_tag_frequency": json.dumps(tags)})
    assert len(words) == MAX_WORDS
    assert words[1] == "tag 999"
    assert max(map(len, words)) <= MAX_WORD_LENGTH + 1


def test_title_of_the_model_is_preferred_to_its_file_name() -> None:
    assert model_title({"ss_output_name": "anna-v2", "modelspec.title": "Anna"}) == "Anna"
    assert model_title({"ss_output_name": "anna-v2"}) == "anna-v2"
    assert model_title({}) is None
