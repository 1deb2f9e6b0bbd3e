"""Prices: formulas, metered runs, and the limits of what customers may set."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.prices.effects import check_price, facts_of
from comfyrelay.domain.prices.formula import MAX_LENGTH, Formula
from comfyrelay.domain.prices.limits import InputFacts, check_inputs, check_limits, propose_limits, with_limits
from comfyrelay.domain.prices.metered import MeteredPrice, charged_tokens
from comfyrelay.domain.properties import Property, Value
from comfyrelay.errors import InvalidInput

START = datetime(2026, 1, 1, tzinfo=UTC)


def tokens(text: str, minimum: int = 0, maximum: int = 1_000_000, **values: float) -> int:
    exact = {name: Fraction(str(value)) for name, value in values.items()}
    return Formula(text).tokens(exact, minimum=minimum, maximum=maximum)


def number(key: str, **fields: Any) -> Property:
    return Property.from_json(
        {"key": key, "type": "number", "placeholder": f"{{{{{key}}}}}", "user_configurable": True, **fields}
    )


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("5", 5),
        ("2 + 3 * seconds", 32),
        ("(2 + 3) * seconds", 50),
        ("seconds / 4", 3),
        ("0.1 * seconds * 3", 3),
        ("max(1, seconds - 20)", 1),
        ("min(seconds, 4, 7) - -1", 5),
        ("10 - 2 - 3", 5),
    ],
)
def test_formula_follows_arithmetic_and_rounds_up(text: str, price: int) -> None:
    assert tokens(text, seconds=10) == price


def test_price_stays_between_minimum_and_maximum() -> None:
    assert tokens("seconds - 100", minimum=3, seconds=1) == 3
    assert tokens("seconds * 900000000", maximum=50, seconds=9) == 50


def test_unknown_value_and_division_by_zero_cost_the_maximum() -> None:
    assert tokens("2 * seconds", maximum=70) == 70
    assert tokens("2 / (seconds - 1)", maximum=70, seconds=1) == 70


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 +",
        "2 ** 3",
        "seconds.real",
        "__import__('os').system('id')",
        "seconds()",
        "lambda: 1",
        "1e9",
        "0x10",
        "nan",
        "2 // 3",
        "a if b else c",
        "[1][0]",
        "2; 3",
        "(1",
        "1)",
        "max()",
        "min",
        "1" * 10,
        "(" * 30 + "1" + ")" * 30,
        "-" * 30 + "1",
        "1" + "+1" * MAX_LENGTH,
        "²",
        "1 2",
    ],
)
def test_invalid_formula_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_price(credits_cost=0, price_formula=text, max_credits_cost=9, properties=[])
    assert set(refused.value.errors) == {"price_formula"}


@given(st.text(alphabet="0123456789.+-*/(), minaxseconds", max_size=60), st.integers(0, 10**6))
def test_every_text_is_a_bounded_whole_price_or_refused(text: str, seconds: int) -> None:
    try:
        formula = Formula(text)
    except InvalidInput:
        return
    price = formula.tokens({"seconds": Fraction(seconds)}, minimum=2, maximum=99)
    assert isinstance(price, int)
    assert 2 <= price <= 99


def test_formula_uses_only_names_that_the_workflow_has() -> None:
    steps = number("steps", minimum=1, maximum=50)
    check_price(credits_cost=1, price_formula="2 * steps", max_credits_cost=100, properties=[steps])
    with pytest.raises(InvalidInput) as refused:
        check_price(credits_cost=1, price_formula="2 * seconds", max_credits_cost=100, properties=[steps])
    assert refused.value.errors["price_formula"] == "This workflow has no seconds. Use: steps."


@pytest.mark.parametrize(
    ("formula", "is_safe"),
    [("1 / steps", True), ("1 / (steps - 1)", False), ("1 / 0", False), ("1 / max(1, steps - 9)", True)],
)
def test_possible_division_by_zero_is_refused(formula: str, is_safe: bool) -> None:
    wanted: dict[str, Any] = {"credits_cost": 1, "price_formula": formula, "max_credits_cost": 9}
    properties = [number("steps", minimum=1, maximum=50)]
    if is_safe:
        check_price(**wanted, properties=properties)
    else:
        with pytest.raises(InvalidInput, match="input is invalid"):
            check_price(**wanted, properties=properties)


@pytest.mark.parametrize("formula", ["-5 * steps", "0 * steps", "steps - 50", "1", "min(1, steps)"])
def test_formula_that_never_reaches_the_minimum_is_refused(formula: str) -> None:
    wanted: dict[str, Any] = {"price_formula": formula, "max_credits_cost": 90}
    properties = [number("steps", minimum=1, maximum=50)]
    with pytest.raises(InvalidInput) as refused:
        check_price(credits_cost=2, **wanted, properties=properties)
    assert "the price would always be 2" in refused.value.errors["price_formula"]
    # A stored price stays valid: it must not block other changes of the effect or its workflow.
    check_price(credits_cost=2, **wanted, properties=properties, is_new=False)


def test_formula_that_is_always_zero_is_refused_without_a_minimum() -> None:
    with pytest.raises(InvalidInput):
        check_price(credits_cost=0, price_formula="0 * 5", max_credits_cost=9, properties=[])
    check_price(credits_cost=0, price_formula="0.1", max_credits_cost=9, properties=[])


@pytest.mark.parametrize(
    ("key", "is_rate"),
    [("fps", True), ("create_video_fps", True), ("video_frame_rate_2", True), ("fps_mode", False), ("rate", False)],
)
def test_seconds_are_frames_divided_by_the_frame_rate(key: str, is_rate: bool) -> None:
    frames = number("frames", role="length", minimum=1, maximum=161)
    rate = number(key, minimum=1, maximum=60)
    facts = facts_of([Value(property=frames, value=48), Value(property=rate, value=16)], InputFacts())
    assert facts.get("seconds") == (3 if is_rate else None)
    price: dict[str, Any] = {"credits_cost": 1, "price_formula": "2 * seconds", "max_credits_cost": 90}
    if is_rate:
        check_price(**price, properties=[frames, rate])
    else:
        with pytest.raises(InvalidInput):
            check_price(**price, properties=[frames, rate])


def test_formula_needs_a_maximum_above_its_minimum() -> None:
    for maximum in (None, 4):
        with pytest.raises(InvalidInput) as refused:
            check_price(credits_cost=5, price_formula="5", max_credits_cost=maximum, properties=[])
        assert set(refused.value.errors) == {"max_credits_cost"}


def test_facts_come_from_values_before_the_measured_input() -> None:
    measured = InputFacts(width=4000, height=1000, seconds=30.5)
    sized = [Value(property=number(key), value=value) for key, value in (("width", 500), ("height", 400))]
    assert facts_of(sized, measured)["megapixels"] == Fraction(1, 5)
    assert facts_of([], measured) == {"megapixels": 4, "seconds": Fraction("30.5")}
    video = [Value(property=number(key), value=value) for key, value in (("length", 81), ("fps", 16))]
    assert facts_of(video, measured)["seconds"] == Fraction(81, 16)


@pytest.mark.parametrize(
    ("key", "maximum"), [("width", 16384), ("batch_size", 4096), ("steps", 10000), ("n_iter", 100)]
)
def test_limits_of_nodes_do_not_limit_customers(key: str, maximum: int) -> None:
    dropped = number(key, minimum=1, maximum=maximum, default_value=2, is_whole=True)
    with pytest.raises(InvalidInput) as refused:
        check_limits([dropped])
    assert "Lower the maximum" in refused.value.errors[f"properties.{key}"]
    low, high = propose_limits(dropped)
    check_limits([number(key, minimum=low, maximum=high, default_value=2)])


def test_number_without_limits_is_refused_unless_customers_cannot_set_it() -> None:
    with pytest.raises(InvalidInput):
        check_limits([number("cfg", default_value=7)])
    check_limits([number("cfg", user_configurable=False), number("seed"), number("noise", minimum=0, maximum=1)])


@pytest.mark.parametrize(("key", "highest"), [("repeat_latent", 4), ("n_iter", 4), ("batch_count", 4), ("far", 200)])
def test_proposed_number_stays_near_its_default(key: str, highest: int) -> None:
    assert propose_limits(number(key, minimum=1, maximum=100_000, default_value=2)) == (1, highest)


def prop_of(type_: str, **fields: Any) -> Property:
    return Property.from_json({"key": "x", "type": type_, "placeholder": "{{X}}", "user_configurable": True, **fields})


@pytest.mark.parametrize(
    ("type_", "given", "problem"),
    [
        ("text", "a" * 5000, None),
        ("text", "a" * 5001, "This must have at most 5000 characters."),
        ("video", InputFacts(width=1920, height=1080, seconds=120), None),
        ("video", InputFacts(width=1920, height=1080, seconds=121), "This must be at most 120 seconds long."),
        ("video", InputFacts(width=8000, height=4000, seconds=1), "This video is larger than 4K."),
        ("video", InputFacts(width=64, height=64, seconds=120, frames=7320), None),
        ("video", InputFacts(width=64, height=64, seconds=30, frames=7200), None),
        (
            "video",
            InputFacts(width=64, height=64, seconds=0.1, frames=7201),
            "This video has more than 60 frames per second. It must have at most 7,200 frames, and has 7,201.",
        ),
        ("video", InputFacts(width=64, height=64), "The duration of this file is unknown."),
        ("audio", InputFacts(seconds=3601), "This must be at most 120 seconds long."),
        ("image", InputFacts(width=8000, height=6000, seconds=0), None),
        ("image", InputFacts(width=8001, height=8001, seconds=0), "This image has more than 50 megapixels."),
        ("image", None, None),
    ],
)
@pytest.mark.parametrize("is_primary", [False, True])
def test_texts_and_files_of_customers_have_limits(
    type_: str, given: Any, problem: str | None, is_primary: bool
) -> None:
    prop = prop_of(type_, is_primary_input=is_primary)
    is_file = type_ != "text"
    measured = {"file": given} if is_file and given is not None else {}
    values = (
        [] if is_primary and is_file else [Value(property=prop, value="file" if is_file else given, from_user=True)]
    )
    errors = {}
    try:
        check_inputs(values, [prop], measured, primary_id="file" if is_primary else None)
    except InvalidInput as error:
        errors = error.errors
    [text] = errors.values() or [None]
    assert text is None if problem is None else str(text).startswith(problem)


@pytest.mark.parametrize(("type_", "highest"), [("text", 50_000), ("video", 3600), ("audio", 3600), ("image", 200)])
def test_limits_of_texts_and_files_are_proposed_and_cannot_be_too_high(type_: str, highest: int) -> None:
    fields = {"key": "x", "type": type_, "placeholder": "{{X}}", "user_configurable": True}
    [proposed] = with_limits([fields])
    check_limits([Property.from_json(proposed), prop_of(type_, maximum=highest), prop_of(type_)])
    for maximum in (highest + 1, 0, -5):
        with pytest.raises(InvalidInput) as refused:
            check_limits([prop_of(type_, maximum=maximum)])
        assert f"such as {proposed['maximum']:g}" in refused.value.errors["properties.x"]


@given(st.floats(-1e6, 1e6), st.sampled_from(["width", "steps", "length", "cfg", "batch_size"]))
def test_proposed_limits_contain_the_default(default: float, key: str) -> None:
    low, high = propose_limits(number(key, default_value=default))
    assert low is not None
    assert high is not None
    assert low <= default <= high


@given(st.integers(1, 10**6), st.integers(1, 86_400), st.floats(0, 200_000))
def test_metered_run_never_costs_more_than_reserved(rate: int, max_seconds: int, ran: float) -> None:
    reserved = MeteredPrice(millitokens_per_second=rate, max_seconds=max_seconds).reserved_tokens
    charged = charged_tokens(
        reserved_tokens=reserved,
        millitokens_per_second=rate,
        started_at=START,
        completed_at=START + timedelta(seconds=ran),
    )
    assert 0 <= charged <= reserved
    assert (charged == 0) == (timedelta(seconds=ran) == timedelta(0))
