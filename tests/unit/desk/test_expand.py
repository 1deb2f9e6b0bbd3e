"""Lists of values expand to the items of a batch."""

import itertools
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.desk.batches.axes import SweepAxis
from comfyrelay.desk.batches.expand import MAX_SEED, PlannedItem, SeedPlan, expand
from comfyrelay.domain.bulk import MAX_ITEMS, Mode, SeedMode
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.jobs import NewBatch

names = st.lists(st.text(min_size=1, max_size=5), max_size=4)
try_counts = st.integers(1, 4)
plans = st.builds(
    lambda mode, start, more: SeedPlan(mode=mode, start=start, maximum=min(start + more, MAX_SEED)),
    st.sampled_from(SeedMode),
    st.integers(0, MAX_SEED),
    st.integers(0, MAX_SEED),
)


def expanded(**values: Any) -> list[PlannedItem]:
    return expand(**values).items


def refusal(**values: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        expanded(**values)
    return refused.value


def seeds_of(items: list[PlannedItem]) -> list[int | None]:
    return [item.seed for item in items]


class TestProduct:
    @given(names, names, names, try_counts)
    def test_product_has_one_item_per_combination_in_list_order(
        self, inputs: list[str], prompts: list[str], negatives: list[str], tries: int
    ) -> None:
        items = expanded(inputs=inputs, prompts=prompts, negatives=negatives, tries=tries)
        found = [(item.input, item.payload.get("prompt"), item.payload.get("negative_prompt")) for item in items]
        lists: list[list[Any]] = [inputs, prompts, negatives]
        combinations = itertools.product(*(values or [None] for values in lists))
        assert found == [combination for combination in combinations for _ in range(tries)]

    def test_empty_request_is_one_item_with_the_defaults(self) -> None:
        assert expanded() == [PlannedItem(input=None)]

    def test_listed_prompts_override_the_common_values_of_items(self) -> None:
        items = expanded(prompts=["a", "b"], base={"steps": 4, "prompt": "x", "seed": 9})
        assert [item.payload for item in items] == [
            {"steps": 4, "prompt": "a", "seed": 9},
            {"steps": 4, "prompt": "b", "seed": 9},
        ]
        assert seeds_of(items) == [9, 9]

    def test_items_do_not_share_their_values(self) -> None:
        base = {"steps": 4}
        items = expanded(base=base)
        base["steps"] = 5
        assert items[0].payload == {"steps": 4}

    def test_workflow_defines_the_keys_of_the_values(self) -> None:
        roles = {"prompt": "text", "seed": "noise_seed"}
        plan = SeedPlan(mode=SeedMode.FIXED, start=3)
        (item,) = expanded(prompts=["a"], seeds=plan, roles=roles)
        assert (item.payload, item.seed) == ({"text": "a", "noise_seed": 3}, 3)

    @pytest.mark.parametrize(
        ("values", "field"),
        [
            ({"prompts": ["a"]}, "prompt"),
            ({"negatives": ["a"]}, "negative_prompt"),
            ({"seeds": SeedPlan()}, "seed"),
        ],
    )
    def test_unknown_property_is_refused(self, values: dict[str, Any], field: str) -> None:
        assert list(refusal(**values, roles={}).errors) == [field]

    def test_zero_tries_are_refused(self) -> None:
        assert refusal(tries=0).detail == "There must be at least one try."

    def test_oversized_batch_is_refused_before_expansion(self) -> None:
        many = ["x"] * 10_000
        assert "1,000,000,000,000 items" in refusal(inputs=many, prompts=many, negatives=many).detail
        assert len(expanded(inputs=["x"] * 100, prompts=["y"] * 100)) == MAX_ITEMS


class TestPairwise:
    @given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=5), names, try_counts)
    def test_inputs_and_prompts_are_paired_by_position(
        self, pairs: list[tuple[str, str]], negatives: list[str], tries: int
    ) -> None:
        inputs, prompts = zip(*pairs, strict=True)
        items = expanded(inputs=inputs, prompts=prompts, negatives=negatives, tries=tries, mode=Mode.PAIRWISE)
        assert len(items) == len(pairs) * (len(negatives) or 1) * tries
        assert [(item.input, item.payload["prompt"]) for item in items[:: (len(negatives) or 1) * tries]] == pairs

    @pytest.mark.parametrize(("inputs", "prompts"), [(["a"], []), (["a"], ["b", "c"]), ([], ["a"])])
    def test_lists_of_different_lengths_are_refused_with_both_counts(
        self, inputs: list[str], prompts: list[str]
    ) -> None:
        refused = refusal(inputs=inputs, prompts=prompts, mode=Mode.PAIRWISE)
        assert f"{len(inputs)} inputs and {len(prompts)} prompts" in refused.detail
        assert list(refused.errors) == ["prompts"]

    def test_empty_lists_are_refused(self) -> None:
        assert "0 items" in refusal(mode=Mode.PAIRWISE).detail


class TestSeeds:
    def test_items_have_no_seeds_without_a_plan(self) -> None:
        assert seeds_of(expanded(tries=2)) == [None, None]

    @given(plans, st.integers(1, 50))
    def test_each_item_has_a_valid_seed_that_matches_its_payload(self, plan: SeedPlan, tries: int) -> None:
        items = expanded(tries=tries, seeds=plan, rng=random.Random(1))
        assert all(item.seed is not None and 0 <= item.seed <= plan.maximum for item in items)
        assert [item.payload["seed"] for item in items] == seeds_of(items)

    def test_fixed_seed_is_the_same_for_all_items(self) -> None:
        plan = SeedPlan(mode=SeedMode.FIXED, start=MAX_SEED)
        assert seeds_of(expanded(prompts=["a", "b"], seeds=plan)) == [MAX_SEED] * 2

    def test_incremented_seed_continues_over_all_items(self) -> None:
        plan = SeedPlan(mode=SeedMode.INCREMENT, start=7)
        assert seeds_of(expanded(prompts=["a", "b"], tries=2, seeds=plan)) == [7, 8, 9, 10]

    def test_seed_wraps_around_after_the_largest(self) -> None:
        plan = SeedPlan(mode=SeedMode.INCREMENT, start=MAX_SEED)
        assert seeds_of(expanded(tries=3, seeds=plan)) == [MAX_SEED, 0, 1]

    @given(st.integers(0, 100), st.integers(1, 60))
    def test_random_seeds_are_distinct_if_the_range_allows(self, largest: int, tries: int) -> None:
        items = expanded(tries=tries, seeds=SeedPlan(maximum=largest), rng=random.Random(tries))
        assert len(set(seeds_of(items))) == min(tries, largest + 1)

    def test_random_seeds_come_from_the_given_source(self) -> None:
        one, same, other = (seeds_of(expanded(tries=9, seeds=SeedPlan(), rng=random.Random(n))) for n in (1, 1, 2))
        assert one == same != other

    def test_random_seeds_are_exact_in_javascript(self) -> None:
        found = seeds_of(expanded(tries=1000, seeds=SeedPlan(), rng=random.Random(1)))
        assert all(seed is not None and float(seed) == seed < 2**53 for seed in found)

    @pytest.mark.parametrize("plan", [SeedPlan(start=-1), SeedPlan(start=MAX_SEED + 1), SeedPlan(start=5, maximum=4)])
    def test_start_out_of_range_is_refused(self, plan: SeedPlan) -> None:
        assert list(refusal(seeds=plan).errors) == ["seed"]


class TestLabels:
    def test_label_names_input_prompt_and_attempt(self) -> None:
        items = expanded(inputs=[Path("in/red fox.png")], prompts=["walks\n on"], tries=2)
        assert [item.label for item in items] == ["red fox · walks on · try 1", "red fox · walks on · try 2"]

    def test_long_prompt_is_truncated_between_words(self) -> None:
        (item,) = expanded(prompts=["word " * 100])
        assert item.label == " ".join(["word"] * 12) + "…"

    def test_label_has_the_values_of_the_sweep_and_is_bounded(self) -> None:
        axes = [
            SweepAxis(key="steps", name="Steps", values=[10, 20]),
            SweepAxis(key="fast", name="Fast", values=[True]),
        ]
        items = expanded(inputs=["x" * 190], sweep=axes, tries=2)
        assert [len(item.label) <= 200 and item.label.endswith(("try 1", "try 2")) for item in items] == [True] * 4
        assert [item.label for item in expanded(sweep=axes)] == ["Steps 10 · Fast on", "Steps 20 · Fast on"]


STEPS = SweepAxis(key="steps", name="Steps", values=[10, 20])
CFG = SweepAxis(key="cfg", name="Cfg", values=[1, 2.5, 4])


class TestSweep:
    def test_fields_are_combined_with_each_other_and_with_prompts(self) -> None:
        found = expand(prompts=["a", "b"], sweep=[STEPS, CFG], tries=2)
        values = [(item.payload["prompt"], item.payload["steps"], item.payload["cfg"]) for item in found.items]
        assert values == [row for row in itertools.product("ab", [10, 20], [1, 2.5, 4]) for _ in range(2)]
        assert [(axis.key, list(axis.values)) for axis in found.axes] == [
            ("prompt", ["a", "b"]),
            ("steps", ["10", "20"]),
            ("cfg", ["1", "2.5", "4"]),
            ("tries", ["1", "2"]),
        ]

    def test_item_number_is_the_place_in_the_grid(self) -> None:
        found = expand(prompts=["a", "b"], sweep=[STEPS, CFG])
        places = list(itertools.product(*(range(len(axis.values)) for axis in found.axes)))
        for item, (prompt, steps, cfg) in zip(found.items, places, strict=True):
            assert item.payload == {"prompt": "ab"[prompt], "steps": STEPS.values[steps], "cfg": CFG.values[cfg]}

    def test_swept_value_replaces_the_common_one(self) -> None:
        assert [item.payload for item in expanded(sweep=[STEPS], base={"steps": 1})] == [{"steps": 10}, {"steps": 20}]

    def test_pairwise_sweep_combines_values_by_position(self) -> None:
        found = expand(sweep=[STEPS, SweepAxis(key="cfg", name="Cfg", values=[1, 2])], mode=Mode.PAIRWISE)
        assert [item.payload for item in found.items] == [{"steps": 10, "cfg": 1}, {"steps": 20, "cfg": 2}]
        assert [(axis.name, list(axis.values)) for axis in found.axes] == [("Steps · Cfg", ["10 · 1", "20 · 2"])]

    def test_pairwise_lists_of_different_lengths_name_the_shorter_field(self) -> None:
        refused = refusal(sweep=[CFG, STEPS], mode=Mode.PAIRWISE)
        assert "3 values of Cfg and 2 values of Steps" in refused.detail
        assert list(refused.errors) == ["steps"]

    def test_field_cannot_be_both_listed_and_swept(self) -> None:
        axis = SweepAxis(key="prompt", name="Prompt", values=["a"])
        assert list(refusal(prompts=["b"], sweep=[axis]).errors) == ["prompt"]

    def test_oversized_sweep_names_its_lists(self) -> None:
        axes = [SweepAxis(key=key, name=key, values=list(range(101))) for key in ("steps", "cfg")]
        assert "10,201 items (101 values of steps × 101 values of cfg × 1 tries)" in refusal(sweep=axes).detail

    @pytest.mark.parametrize("mode", Mode)
    @pytest.mark.parametrize("name", ["x" * 85, "x" * 250, "long name " * 25])
    def test_texts_of_axes_are_accepted_by_a_server(self, name: str, mode: Mode) -> None:
        axis = SweepAxis(key="style", name="Style " * 60, values=["ink " * 50, "oil " * 50])
        found = expand(inputs=[f"{name}1.png", f"{name}2.png"], prompts=["a " * 90, "b " * 90], sweep=[axis], mode=mode)
        sent = [asdict(axis) for axis in found.axes]
        body = NewBatch.model_validate({"effect_id": 1, "items": [{} for _ in found.items], "axes": sent})
        assert len(body.axes) == (1 if mode is Mode.PAIRWISE else 3)

    def test_uploaded_inputs_are_named_in_labels_and_axes(self) -> None:
        found = expand(inputs=["id-1", "id-2"], names={"id-1": "red fox.png", "id-2": "heron.jpg"})
        assert [item.label for item in found.items] == ["red fox", "heron"] == list(found.axes[0].values)
