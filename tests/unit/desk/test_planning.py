"""The jobs of a sweep differ only in the swept fields."""

from typing import Any

import pytest

from comfyrelay.desk.batches.expand import SeedPlan
from comfyrelay.desk.batches.planning import BatchLists, plan_items
from comfyrelay.domain.bulk import SeedMode
from comfyrelay.domain.properties import Property


def number(key: str, **more: Any) -> Property:
    fields = {"placeholder": key, "key": key, "type": "number", "is_whole": True, "user_configurable": True}
    return Property.from_json({**fields, **more})


PROPERTIES = [number("steps", default_value=20), number("seed", maximum=99), number("noise_seed")]
SWEEP = {"steps": [10, 20, 30]}


def payloads(lists: BatchLists, **more: Any) -> list[Any]:
    return [item.payload for item in plan_items(lists, PROPERTIES, **{"base": {}, **more}).items]


def test_all_cells_of_a_try_use_the_same_seeds() -> None:
    found = payloads(BatchLists(sweep=SWEEP, tries=2))
    assert [payload["steps"] for payload in found] == [10, 10, 20, 20, 30, 30]
    tries = {(payload["seed"], payload["noise_seed"]) for payload in found}
    assert len(tries) == 2
    assert {(payload["seed"], payload["noise_seed"]) for payload in found[::2]} == {
        (found[0]["seed"], found[0]["noise_seed"])
    }
    assert all(0 <= payload["seed"] <= 99 for payload in found)


def test_plan_sets_no_seeds_without_a_sweep() -> None:
    assert payloads(BatchLists(tries=3)) == [{}, {}, {}]


@pytest.mark.parametrize(
    ("lists", "more"),
    [
        (BatchLists(sweep=SWEEP), {"base": {"seed": 7}}),
        (BatchLists(sweep={"seed": [7]}), {}),
        (BatchLists(sweep=SWEEP, seeds=SeedPlan(mode=SeedMode.FIXED, start=7)), {}),
    ],
)
def test_given_seed_is_kept(lists: BatchLists, more: Any) -> None:
    found = payloads(lists, **more)
    assert {payload["seed"] for payload in found} == {7}
    assert not any("noise_seed" in payload for payload in found)


def test_increment_mode_adds_one_per_try() -> None:
    plan = SeedPlan(mode=SeedMode.INCREMENT, start=7)
    found = payloads(BatchLists(sweep=SWEEP, seeds=plan, tries=2))
    assert [payload["seed"] for payload in found] == [7, 8] * 3


def test_seed_of_an_effect_is_kept() -> None:
    found = payloads(BatchLists(sweep=SWEEP), overrides={"seed": 7})
    assert not any("seed" in payload for payload in found)
    assert len({payload["noise_seed"] for payload in found}) == 1
