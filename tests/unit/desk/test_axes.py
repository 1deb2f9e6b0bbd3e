"""A sweep axis is read from a list or a text."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.desk.batches.axes import read_axes
from comfyrelay.desk.batches.expand import MAX_SEED
from comfyrelay.domain.bulk import MAX_ITEMS
from comfyrelay.domain.properties import Property
from comfyrelay.errors import InvalidInput

PROPERTIES = [
    Property.from_json({"placeholder": fields["key"], "user_configurable": True, **fields})
    for fields in (
        {"key": "sampler_steps", "type": "number", "is_whole": True, "minimum": 1, "maximum": 100, "role": "steps"},
        {"key": "cfg", "type": "number", "minimum": 0, "maximum": 30},
        {"key": "sampler", "type": "choice", "choices": ["euler", "ddim", "a, b"]},
        {"key": "hires", "type": "boolean"},
        {"key": "prompt", "type": "text"},
        {"key": "image", "type": "image"},
        {"key": "hidden", "type": "number", "user_configurable": False},
    )
]


def values(key: str, given: Any, *, seed: int = 1) -> list[Any]:
    [axis] = read_axes({key: given}, PROPERTIES, rng=random.Random(seed))
    return list(axis.values)


def refusal(key: str, given: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        values(key, given)
    return refused.value


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("cfg", "1, 2.5,4", [1, 2.5, 4]),
        ("cfg", "0..0.3:0.1", [0, 0.1, 0.2, 0.3]),
        ("cfg", "1..4", [1, 2, 3, 4]),
        ("cfg", "4..1:1.5", [4, 2.5, 1]),
        ("cfg", "7, 1..2:0.5", [7, 1, 1.5, 2]),
        ("sampler_steps", "10..30:10", [10, 20, 30]),
        ("steps", "8", [8]),
        ("sampler", "ddim,euler", ["ddim", "euler"]),
        ("sampler", "*", ["euler", "ddim", "a, b"]),
        ("sampler", '["a, b"]', ["a, b"]),
        ("hires", "*", [True, False]),
        ("hires", "off, true", [False, True]),
        ("prompt", "a red fox, running\n\n a heron \n", ["a red fox, running", "a heron"]),
        ("cfg", [1, 1, 2], [1, 1, 2]),
        ("sampler_steps", [8.0], [8]),
    ],
)
def test_axis_is_read_as_typed(key: str, text: Any, expected: list[Any]) -> None:
    found = values(key, text)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@given(st.integers(1, 50), st.integers(0, 99))
def test_random_values_are_different_and_in_range(count: int, seed: int) -> None:
    found = values("sampler_steps", f"{count} of 1..50", seed=seed)
    assert len(set(found)) == count
    assert all(1 <= value <= 50 and isinstance(value, int) for value in found)
    assert found == values("sampler_steps", f"{count} of 1..50", seed=seed)


def test_random_values_in_the_range_of_a_seed_are_different() -> None:
    seed = Property.from_json({"key": "seed", "placeholder": "seed", "type": "number", "is_whole": True})
    [axis] = read_axes({"seed": f"500 of 0..{MAX_SEED}"}, [replace(seed, user_configurable=True)])
    assert len(set(axis.values)) == 500
    assert all(isinstance(value, int) and 0 <= value <= MAX_SEED for value in axis.values)


def test_all_values_of_a_range_can_be_drawn() -> None:
    assert values("sampler_steps", "100 of 1..100") == list(range(1, 101))


def test_random_fractions_use_the_step() -> None:
    assert set(values("cfg", "4 of 1..2.5:0.5")) == {1, 1.5, 2, 2.5}
    assert len(values("cfg", "100 of 1..2")) == 100


# Numbers that would otherwise take seconds or raise another error.
HOSTILE = ("0..1e300", "1e300000", "Infinity", "sNaN", "9" * 5000, "1" * 100_000 + "x", "5 of 0..1e99")


@pytest.mark.parametrize(
    ("key", "text", "part"),
    [
        ("sampler_steps", "10,200", "200: "),
        ("sampler_steps", "1..2:0.5", "1.5: "),
        ("cfg", "fast", "'fast' is not a number or a range"),
        ("cfg", "1..5:0", "must not be 0"),
        ("cfg", "", "There is no value to sweep"),
        ("cfg", [], "There is no value to sweep"),
        ("cfg", 7, "There is no value to sweep"),
        ("cfg", [1] * (MAX_ITEMS + 1), f"more than {MAX_ITEMS:,} values"),
        ("sampler", [["euler"]], "This must be one of"),
        ("cfg", "1..30:0.001", f"more than {MAX_ITEMS:,} values"),
        ("cfg", "10001 of 1..30", f"more than {MAX_ITEMS:,} values"),
        ("cfg", "0..1e30", f"more than {MAX_ITEMS:,} values"),
        *(("cfg", text, "is not a number or a range") for text in HOSTILE),
        ("sampler_steps", "9 of 1..5", "There are 5 different values"),
        ("sampler", "euler,heun", "heun: This must be one of"),
        ("hires", "maybe", "maybe: This must be true or false"),
        ("prompt", "[1", "not a JSON list"),
        ("cfg", '["1"]', "1: "),
        ("image", "a.png", "several input files"),
        ("hidden", "1", "There is no such field to sweep"),
        ("nothing", "1", "There are: cfg, hires, prompt, sampler, sampler_steps."),
    ],
)
def test_invalid_axis_names_its_field_and_the_reason(key: str, text: Any, part: str) -> None:
    refused = refusal(key, text)
    assert list(refused.errors) == [key]
    assert part in refused.detail


def test_field_cannot_be_swept_twice() -> None:
    with pytest.raises(InvalidInput, match="swept twice"):
        read_axes({"steps": "1", "sampler_steps": "2"}, PROPERTIES)
