"""Resolution and validation of the values of a workflow's properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.properties import (
    Property,
    PropertyType,
    Role,
    apply_preset,
    check_overrides,
    check_properties,
    defaults,
    describe_changes,
    problem_with,
    resolve,
    seeds_to_draw,
)
from comfyrelay.errors import InvalidInput
from comfyrelay.services.jobs.submission.seeds import draw_seeds
from comfyrelay.text import is_storable

ANY_CHARACTER = st.characters(exclude_categories=())


def prop(type_: str = "text", *, key: str = "it", **fields: Any) -> Property:
    fields = {"user_configurable": True, "placeholder": f"{{{{{key}}}}}", **fields}
    return Property.from_json({"key": key, "type": type_, **fields})


def resolved(property_: Property, sent: Any = None, *, override: Any = None) -> Any:
    """Resolve one property. Return its value, or `None` if it has none."""
    overrides = {} if override is None else {property_.key: override}
    values = resolve([property_], overrides=overrides, user_input={} if sent is None else {property_.key: sent})
    return values[0].value if values else None


def problem(property_: Property, sent: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        resolve([property_], overrides={}, user_input={property_.key: sent})
    assert list(refused.value.errors) == [property_.key]
    return refused.value.errors[property_.key]


def complaints(*properties: Property) -> dict[str, str]:
    with pytest.raises(InvalidInput) as refused:
        check_properties(properties)
    return refused.value.errors


def test_user_value_overrides_effect_and_workflow() -> None:
    property_ = prop("number", default_value=1)
    assert resolved(property_) == 1
    assert resolved(property_, override=2) == 2
    assert resolved(property_, 3, override=2) == 3


def test_falsy_value_is_a_value() -> None:
    assert resolved(prop("number", default_value=1), 0) == 0
    assert resolved(prop("boolean", default_value=True), False) is False
    assert resolved(prop("text", default_value="a cat"), "") == ""


def test_null_means_not_sent() -> None:
    property_ = prop("number", default_value=1)
    (value,) = resolve([property_], overrides={}, user_input={"it": None})
    assert (value.value, value.from_user) == (1, False)


def test_only_user_input_is_marked_as_such() -> None:
    mine, fixed = prop(key="mine"), prop(key="fixed", default_value="x", user_configurable=False)
    values = resolve([mine, fixed], overrides={}, user_input={"mine": "y"})
    assert {value.property.key: value.from_user for value in values} == {"mine": True, "fixed": False}


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
def test_value_of_the_right_type_is_unchanged(type_: str, good: Any) -> None:
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
def test_value_of_another_type_is_refused(type_: str, bad: Any) -> None:
    assert problem(prop(type_), bad).startswith("This ")


def test_number_must_be_within_its_bounds() -> None:
    property_ = prop("number", minimum=0, maximum=10)
    assert [resolved(property_, value) for value in (0, 10)] == [0, 10]
    assert problem(property_, -1) == "This must be at least 0."
    assert problem(property_, 10.5) == "This must be at most 10."


def test_seed_bounds_are_shown_with_all_digits() -> None:
    property_ = prop("number", minimum=-(2**63), maximum=2**64 - 2)
    assert resolved(property_, 2**64 - 2) == 2**64 - 2
    assert problem(property_, 2**64 - 1) == "This must be at most 18446744073709551614."
    assert problem(property_, -(2**63) - 1) == "This must be at least -9223372036854775808."
    assert problem(prop("number", maximum=0.5), 1) == "This must be at most 0.5."


@pytest.mark.parametrize(
    "key", ["seed", "noise_seed", "ksampler_seed", "random_noise_noise_seed", "ksampler_seed_12_3"]
)
def test_whole_number_named_seed_is_a_seed(key: str) -> None:
    assert prop("number", key=key).is_seed
    assert prop("number", key=key, default_value=7).is_seed
    assert not prop("text", key=key).is_seed
    assert not prop("number", key=key, default_value=0.5).is_seed


@pytest.mark.parametrize("key", ["seed_strength", "seeds", "reseed", "steps"])
def test_key_that_only_mentions_a_seed_is_not_a_seed(key: str) -> None:
    assert not prop("number", key=key).is_seed


def test_drawn_seed_is_valid_for_every_node() -> None:
    assert (
        prop("number", key="seed", maximum=2**64 - 1).seed_limit == prop("number", key="seed").seed_limit == 2**32 - 1
    )
    assert prop("number", key="seed", maximum=999).seed_limit == 999


def test_whole_number_must_be_whole() -> None:
    property_ = prop("number", key="steps", is_whole=True, minimum=1)
    with pytest.raises(InvalidInput) as refused:
        resolve([property_], overrides={}, user_input={"steps": 1.5})
    assert refused.value.errors == {"steps": "This must be a whole number."}
    value = resolved(property_, 8.0)
    assert (value, type(value)) == (8, int)
    assert resolved(prop("number"), 1.5) == 1.5


@pytest.mark.parametrize(
    ("type_", "key", "role"),
    [
        ("text", "prompt", Role.PROMPT),
        ("text", "positive", Role.PROMPT),
        ("text", "negative_prompt", Role.NEGATIVE_PROMPT),
        ("number", "frames", Role.LENGTH),
        ("number", "denoise", Role.STRENGTH),
        ("number", "ksampler_steps", None),
        ("number", "prompt", None),
        ("video", "clip", Role.INPUT),
    ],
)
def test_role_defaults_to_the_key(type_: str, key: str, role: Role | None) -> None:
    assert prop(type_, key=key).role is role
    assert prop(type_, key=key, role="model").role is Role.MODEL


def test_label_defaults_to_the_key_in_words() -> None:
    assert prop(key="input_subdir").display_name == "Input subdir"
    assert prop(key="it", label="The thing").display_name == "The thing"


STEPS = prop("number", key="steps", default_value=20, is_whole=True, minimum=1, maximum=10_000)
BORDER = prop("number", key="border", default_value=10, is_whole=True, minimum=0, maximum=10_000, scaled_from="steps")


def border(**sent: Any) -> Any:
    overrides = sent.pop("overrides", {})
    values = resolve([STEPS, BORDER], overrides=overrides, user_input=sent)
    return {value.property.key: value.value for value in values}["border"]


class TestLinkedValues:
    def test_linked_border_keeps_its_share_of_the_steps(self) -> None:
        assert border() == 10
        assert border(steps=8) == 4
        assert border(steps=9) == 5
        assert border(steps=1) == 1

    def test_user_value_wins_over_the_linked_one(self) -> None:
        assert border(steps=8, border=7) == 7
        assert border(border=7) == 7

    def test_border_follows_the_steps_set_by_an_effect(self) -> None:
        assert border(overrides={"steps": 8}) == 4
        assert border(overrides={"steps": 8, "border": 2}) == 2
        assert border(overrides={"steps": 8, "border": 2}, steps=16) == 4
        assert border(overrides={"border": 5}, steps=40) == 10
        assert defaults([STEPS, BORDER], {"steps": 8}) == {"steps": 8, "border": 4}

    def test_border_after_the_end_is_kept(self) -> None:
        assert border(overrides={"border": 10_000}, steps=8) == 10_000

    def test_linked_border_is_not_reported_if_the_steps_are_wrong(self) -> None:
        with pytest.raises(InvalidInput) as refused:
            border(steps="many")
        assert list(refused.value.errors) == ["steps"]

    @given(st.integers(1, 10_000), st.integers(1, 20), st.integers(1, 20))
    def test_borders_stay_within_the_steps_and_in_order(self, steps: int, one: int, other: int) -> None:
        low, high = (border(overrides={"border": value}, steps=steps) for value in sorted((one, other)))
        assert 1 <= low <= high <= steps

    @pytest.mark.parametrize(
        "fields",
        [{"scaled_from": "nothing"}, {"scaled_from": "border"}, {"default_value": None}, {"type": "text"}],
        ids=repr,
    )
    def test_linked_border_needs_a_number_to_follow(self, fields: dict[str, Any]) -> None:
        wrong = {"key": "border", "type": "number", "placeholder": "b", "default_value": 10, "scaled_from": "steps"}
        if fields.get("type") == "text":
            fields = {"type": "text", "default_value": "10"}
        assert list(complaints(STEPS, Property.from_json({**wrong, **fields}))) == ["border"]


class TestSeedsToDraw:
    MAIN, OTHER = (prop("number", key=key, default_value=7) for key in ("seed", "other_seed"))

    def drawn(self, *properties: Property, overrides: Any = None, **sent: Any) -> list[str]:
        found = seeds_to_draw(properties, overrides=overrides or {}, user_input=sent)
        return [seed.key for seed in found]

    def test_all_seeds_are_drawn_if_none_is_set(self) -> None:
        assert self.drawn(self.MAIN, self.OTHER, STEPS) == ["seed", "other_seed"]
        assert self.drawn(self.MAIN, seed=None) == ["seed"]

    def test_set_seed_prevents_drawing(self) -> None:
        assert self.drawn(self.MAIN, self.OTHER, seed=0) == []
        assert self.drawn(self.MAIN, self.OTHER, other_seed=7) == []

    def test_seed_fixed_by_effect_or_operator_is_not_drawn(self) -> None:
        assert self.drawn(self.MAIN, self.OTHER, overrides={"seed": 3}) == ["other_seed"]
        assert self.drawn(prop("number", key="seed", default_value=7, user_configurable=False)) == []
        assert self.drawn(prop("number", key="seed", user_configurable=False)) == ["seed"]


@given(
    st.lists(
        st.builds(
            lambda key, type_, role, low, is_whole: prop(
                type_, key=key, role=role, minimum=low, is_whole=is_whole, choices=["a", 2]
            ),
            st.sampled_from(["steps", "a", "b", "length"]),
            st.sampled_from(list(PropertyType)),
            st.none() | st.sampled_from(list(Role)),
            st.none() | st.integers(-3, 3),
            st.booleans(),
        ),
        unique_by=lambda build: build.key,
    ),
    st.dictionaries(
        st.sampled_from([*Role, "a", "b"]).map(str), st.none() | st.integers() | st.floats() | st.text() | st.booleans()
    ),
)
def test_preset_sets_valid_values_and_lists_unused_keys(properties: list[Property], preset: dict[str, Any]) -> None:
    applied = apply_preset(preset, properties)
    by_key = {property_.key: property_ for property_ in properties}
    assert all(problem_with(by_key[key], value) is None for key, value in applied.values.items())
    assert all({key, by_key[key].role} & preset.keys() for key in applied.values)
    used = {name for key in applied.values for name in (key, by_key[key].role)}
    assert set(applied.ignored) <= preset.keys()
    assert preset.keys() - used <= set(applied.ignored)


def test_value_must_be_one_of_the_choices() -> None:
    property_ = prop("choice", choices=["small", "large"])
    assert resolved(property_, "small") == "small"
    assert problem(property_, "medium") == "This must be one of: small, large."
    assert problem(property_, ["small"]) == "This must be one of: small, large."


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(InvalidInput) as refused:
        resolve(
            [prop(key="a"), prop("number", key="b"), prop(key="c", required=True)],
            overrides={},
            user_input={"a": 1, "b": "x", "d": 2},
        )
    assert set(refused.value.errors) == {"a", "b", "c", "d"}


def test_fixed_input_is_refused_even_when_it_is_null() -> None:
    with pytest.raises(InvalidInput):
        resolve([prop(user_configurable=False)], overrides={}, user_input={"it": None})


def test_unset_optional_text_is_empty_and_leaves_no_placeholder() -> None:
    assert resolved(prop("text")) == ""


def test_unset_optional_number_has_no_value() -> None:
    assert resolve([prop("number")], overrides={}, user_input={}) == []


def test_effect_may_set_a_required_input() -> None:
    assert resolved(prop(required=True), override="a cat") == "a cat"


def test_primary_input_is_not_a_value() -> None:
    property_ = prop("video", is_primary_input=True, required=True)
    assert resolve([property_], overrides={}, user_input={}) == []
    assert "input_file_id" in problem(property_, "file-1")


def test_conflicting_properties_are_refused() -> None:
    assert complaints(prop(key="a"), prop(key="a", placeholder="{{B}}")) == {"a": "Two properties have this key."}
    assert set(complaints(prop(key="a"), prop(key="b", placeholder="{{a}}"))) == {"a", "b"}
    assert complaints(prop("choice")) == {"it": "Add at least one choice."}
    assert "it" in complaints(prop("text", is_primary_input=True))
    assert complaints(prop("number", default_value="x")) == {"it": "Default value: This must be a number."}
    two = [prop("video", key=key, is_primary_input=True) for key in "ab"]
    assert complaints(*two) == {"is_primary_input": "Only one property can be the primary input."}


@pytest.mark.parametrize(
    ("minimum", "maximum"),
    [
        *((None, high) for high in (-5, -0.5, 1e300, 2**70)),
        *((low, None) for low in (1e300, 2**64, -1e300)),
        *((10, 5), (-10, -5), (5.5, 5.6), (0.5, 0.7)),
    ],
)
def test_seed_bounds_must_contain_a_value(minimum: float | None, maximum: float | None) -> None:
    assert set(complaints(prop("number", key="seed", minimum=minimum, maximum=maximum))) == {"seed"}


@pytest.mark.parametrize(("minimum", "maximum"), [(None, 0.5), (0.5, 1), (-5, 0), (2**64 - 1, None), (None, 2**64 - 1)])
def test_drawn_seed_is_within_its_bounds(minimum: float | None, maximum: float | None) -> None:
    property_ = prop("number", key="seed", minimum=minimum, maximum=maximum)
    check_properties([property_])
    [drawn] = draw_seeds([property_], overrides={}, user_input={}).values()
    assert problem_with(property_, drawn) is None


def test_minimum_must_not_exceed_the_maximum() -> None:
    assert complaints(prop("number", minimum=2, maximum=1)) == {"it": "The minimum is larger than the maximum."}


def test_consistent_properties_are_accepted() -> None:
    check_properties([prop(key="a", default_value="x"), prop("video", key="b", is_primary_input=True)])


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"key": "a", "type": "text"}, "placeholder"),
        ({"key": "", "type": "text", "placeholder": "x"}, "key"),
        ({"key": "a", "type": "colour", "placeholder": "x"}, "type"),
        ({"key": "a", "type": "text", "placeholder": "x", "defualt": 1}, "defualt"),
        ({"key": "a", "type": "text", "placeholder": "x", "role": "hero"}, "role"),
    ],
)
def test_invalid_property_is_refused(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Property.from_json(fields)
    assert list(refused.value.errors) == [wrong]


def test_override_must_match_an_existing_property() -> None:
    check_overrides([prop("number")], {"it": 5})
    with pytest.raises(InvalidInput) as refused:
        check_overrides([prop("number")], {"it": "five", "that": 1})
    assert set(refused.value.errors) == {"it", "that"}


@given(st.text(ANY_CHARACTER))
def test_text_is_storable_if_postgresql_can_store_it(text: str) -> None:
    try:
        holds = "\x00" not in text.encode().decode()
    except UnicodeEncodeError:
        holds = False
    assert is_storable(text) == holds


@given(
    st.sampled_from(list(PropertyType)),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(ANY_CHARACTER), st.lists),
)
def test_input_is_accepted_unchanged_or_refused_by_key(type_: PropertyType, sent: Any) -> None:
    property_ = prop(type_, choices=["a", 1])
    taken: list[Any] = []
    refused: list[str] = []
    try:
        taken = [
            value.value for value in resolve([property_], overrides={}, user_input={"it": sent}) if value.from_user
        ]
    except InvalidInput as error:
        refused = list(error.errors)
    if sent is None:
        assert (taken, refused) == ([], [])
    else:
        assert (taken, refused) in (([sent], []), ([], ["it"]))


def test_changed_inputs_of_a_newer_version_are_named() -> None:
    before: list[dict[str, Any]] = [
        {"key": "prompt", "type": "text", "default_value": "a cat"},
        {"key": "steps", "type": "number", "default_value": 1},
        {"key": "sampler", "type": "text", "default_value": "euler"},
        {"key": "on", "type": "boolean", "default_value": True},
    ]
    after: list[dict[str, Any]] = [
        {"key": "prompt", "type": "text", "default_value": "a cat"},
        {"key": "sampler", "type": "choice", "default_value": "euler"},
        {"key": "on", "type": "boolean", "default_value": False},
        {"key": "cfg", "type": "number", "default_value": 7},
    ]
    assert describe_changes(before, after) == [
        "Removed inputs: steps.",
        "Inputs with a new type: sampler (text, now choice).",
        "Inputs with a new default: on.",
        "New inputs: cfg.",
    ]
    assert describe_changes(before, before) == []
    many = [{"key": f"k{number}", "type": "text"} for number in range(23)]
    assert describe_changes(many, [])[0].endswith("k19, 3 more.")
