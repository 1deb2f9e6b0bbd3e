"""How the values of a workflow's properties come together, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.properties import (
    Property,
    PropertyType,
    check_overrides,
    check_properties,
    resolve,
)
from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable

ANY_CHARACTER = st.characters(exclude_categories=())


def prop(type_: str = "text", *, key: str = "it", **fields: Any) -> Property:
    fields = {"user_configurable": True, "placeholder": f"{{{{{key}}}}}", **fields}
    return Property.from_json({"key": key, "type": type_, **fields})


def resolved(each: Property, sent: Any = None, *, override: Any = None) -> Any:
    """What comes of one property: its value, or nothing."""
    overrides = {} if override is None else {each.key: override}
    values = resolve([each], overrides=overrides, user_input={} if sent is None else {each.key: sent})
    return values[0].value if values else None


def problem(each: Property, sent: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        resolve([each], overrides={}, user_input={each.key: sent})
    assert list(refused.value.errors) == [each.key]
    return refused.value.errors[each.key]


def complaints(*properties: Property) -> dict[str, str]:
    with pytest.raises(InvalidInput) as refused:
        check_properties(properties)
    return refused.value.errors


def test_the_user_beats_the_effect_and_the_effect_beats_the_workflow() -> None:
    each = prop("number", default_value=1)
    assert resolved(each) == 1
    assert resolved(each, override=2) == 2
    assert resolved(each, 3, override=2) == 3


def test_a_value_that_is_zero_or_false_or_empty_is_still_a_value() -> None:
    assert resolved(prop("number", default_value=1), 0) == 0
    assert resolved(prop("boolean", default_value=True), False) is False
    assert resolved(prop("text", default_value="a cat"), "") == ""


def test_null_means_not_sent() -> None:
    each = prop("number", default_value=1)
    (value,) = resolve([each], overrides={}, user_input={"it": None})
    assert (value.value, value.from_user) == (1, False)


def test_only_what_the_user_sent_is_marked_as_the_users() -> None:
    mine, fixed = prop(key="mine"), prop(key="fixed", default_value="x", user_configurable=False)
    values = resolve([mine, fixed], overrides={}, user_input={"mine": "y"})
    assert {each.property.key: each.from_user for each in values} == {"mine": True, "fixed": False}


@pytest.mark.parametrize(
    ("type_", "good"),
    [
        ("text", "a cat"),
        ("number", 3),
        ("number", -0.5),
        ("number", 2**64 - 1),
        ("boolean", True),
        ("image", "file-1"),
        ("video", "file-1"),
        ("audio", "file-1"),
    ],
)
def test_a_value_of_its_type_is_taken_as_it_is(type_: str, good: Any) -> None:
    assert resolved(prop(type_), good) == good


@pytest.mark.parametrize(
    ("type_", "bad"),
    [
        ("text", 1),
        ("text", ["a"]),
        ("text", {"a": 1}),
        ("text", "a\x00b"),
        ("text", "\ud83d"),
        ("number", "1"),
        ("number", True),
        ("number", float("nan")),
        ("number", float("inf")),
        ("number", 10**400),
        ("boolean", 1),
        ("boolean", "true"),
        ("image", 1),
        ("image", ""),
        ("image", ["file-1"]),
        ("image", "a\x00b"),
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_refused(type_: str, bad: Any) -> None:
    assert problem(prop(type_), bad).startswith("This ")


def test_a_number_keeps_within_its_bounds() -> None:
    each = prop("number", minimum=0, maximum=10)
    assert [resolved(each, value) for value in (0, 10)] == [0, 10]
    assert problem(each, -1) == "This must be at least 0."
    assert problem(each, 10.5) == "This must be at most 10."


def test_the_bounds_of_a_seed_are_told_with_all_their_digits() -> None:
    each = prop("number", minimum=-(2**63), maximum=2**64 - 2)
    assert resolved(each, 2**64 - 2) == 2**64 - 2
    assert problem(each, 2**64 - 1) == "This must be at most 18446744073709551614."
    assert problem(each, -(2**63) - 1) == "This must be at least -9223372036854775808."
    assert problem(prop("number", maximum=0.5), 1) == "This must be at most 0.5."


@pytest.mark.parametrize(
    "key", ["seed", "noise_seed", "ksampler_seed", "random_noise_noise_seed", "ksampler_seed_12_3"]
)
def test_a_whole_number_called_seed_is_one(key: str) -> None:
    assert prop("number", key=key).is_seed
    assert prop("number", key=key, default_value=7).is_seed
    assert not prop("text", key=key).is_seed
    assert not prop("number", key=key, default_value=0.5).is_seed


@pytest.mark.parametrize("key", ["seed_strength", "seeds", "reseed", "steps"])
def test_what_only_has_to_do_with_a_seed_is_none(key: str) -> None:
    assert not prop("number", key=key).is_seed


def test_a_seed_by_chance_is_one_that_every_node_takes() -> None:
    assert (
        prop("number", key="seed", maximum=2**64 - 1).seed_limit == prop("number", key="seed").seed_limit == 2**32 - 1
    )
    assert prop("number", key="seed", maximum=999).seed_limit == 999


def test_a_choice_is_one_of_its_choices() -> None:
    each = prop("choice", choices=["small", "large"])
    assert resolved(each, "small") == "small"
    assert problem(each, "medium") == "This must be one of: small, large."
    assert problem(each, ["small"]) == "This must be one of: small, large."


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        resolve(
            [prop(key="a"), prop("number", key="b"), prop(key="c", required=True)],
            overrides={},
            user_input={"a": 1, "b": "x", "d": 2},
        )
    assert set(refused.value.errors) == {"a", "b", "c", "d"}


def test_a_fixed_input_is_refused_even_when_it_is_null() -> None:
    with pytest.raises(InvalidInput):
        resolve([prop(user_configurable=False)], overrides={}, user_input={"it": None})


def test_an_optional_text_that_nobody_sets_is_empty_and_shows_no_placeholder() -> None:
    assert resolved(prop("text")) == ""


def test_an_optional_number_that_nobody_sets_has_no_value() -> None:
    assert resolve([prop("number")], overrides={}, user_input={}) == []


def test_a_required_input_may_come_from_the_effect() -> None:
    assert resolved(prop(required=True), override="a cat") == "a cat"


def test_the_primary_input_is_asked_for_elsewhere() -> None:
    each = prop("video", is_primary_input=True, required=True)
    assert resolve([each], overrides={}, user_input={}) == []
    assert "input_file_id" in problem(each, "file-1")


def test_the_properties_of_a_workflow_must_agree() -> None:
    assert complaints(prop(key="a"), prop(key="a", placeholder="{{B}}")) == {"a": "Two properties have this key."}
    assert set(complaints(prop(key="a"), prop(key="b", placeholder="{{a}}"))) == {"a", "b"}
    assert complaints(prop("choice")) == {"it": "A choice needs its choices."}
    assert "it" in complaints(prop("text", is_primary_input=True))
    assert complaints(prop("number", default_value="x")) == {"it": "Default value: This must be a number."}
    two = [prop("video", key=key, is_primary_input=True) for key in "ab"]
    assert complaints(*two) == {"is_primary_input": "Only one property can be the primary input."}


def test_properties_that_agree_are_accepted() -> None:
    check_properties([prop(key="a", default_value="x"), prop("video", key="b", is_primary_input=True)])


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"key": "a", "type": "text"}, "placeholder"),
        ({"key": "", "type": "text", "placeholder": "x"}, "key"),
        ({"key": "a", "type": "colour", "placeholder": "x"}, "type"),
        ({"key": "a", "type": "text", "placeholder": "x", "defualt": 1}, "defualt"),
    ],
)
def test_a_property_that_is_no_property_is_refused(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Property.from_json(fields)
    assert list(refused.value.errors) == [wrong]


def test_an_effect_overrides_only_what_there_is_and_with_the_right_type() -> None:
    check_overrides([prop("number")], {"it": 5})
    with pytest.raises(InvalidInput) as refused:
        check_overrides([prop("number")], {"it": "five", "that": 1})
    assert set(refused.value.errors) == {"it", "that"}


@given(st.text(ANY_CHARACTER))
def test_text_is_storable_exactly_when_postgresql_could_hold_it(text: str) -> None:
    try:
        holds = "\x00" not in text.encode().decode()
    except UnicodeEncodeError:
        holds = False
    assert is_storable(text) == holds


@given(
    st.sampled_from(list(PropertyType)),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(ANY_CHARACTER), st.lists),
)
def test_whatever_is_sent_is_taken_as_it_is_or_refused_by_its_key(type_: PropertyType, sent: Any) -> None:
    each = prop(type_, choices=["a", 1])
    taken: list[Any] = []
    refused: list[str] = []
    try:
        taken = [value.value for value in resolve([each], overrides={}, user_input={"it": sent}) if value.from_user]
    except InvalidInput as error:
        refused = list(error.errors)
    if sent is None:
        assert (taken, refused) == ([], [])
    else:
        assert (taken, refused) in (([sent], []), ([], ["it"]))
