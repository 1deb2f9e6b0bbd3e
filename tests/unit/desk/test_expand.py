"""A few lists expand to the items of a batch."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.desk.batches.expand import MAX_SEED, PlannedItem, SeedPlan, expand
from comfyrelay.domain.bulk import MAX_ITEMS, Mode, SeedMode
from comfyrelay.errors import InvalidInput

names = st.lists(st.text(min_size=1, max_size=5), max_size=4)
try_counts = st.integers(1, 4)
plans = st.builds(
    lambda mode, start, more: SeedPlan(mode=mode, start=start, maximum=min(start + more, MAX_SEED)),
    st.sampled_from(SeedMode),
    st.integers(0, MAX_SEED),
    st.integers(0, MAX_SEED),
)


def refusal(**values: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        expand(**values)
    return refused.value


def seeds_of(items: list[PlannedItem]) -> list[int | None]:
    return [item.seed for item in items]


class TestProduct:
    @given(names, names, names, try_counts)
    def test_product_has_one_item_per_combination_in_list_order(
        self, inputs: list[str], prompts: list[str], negatives: list[str], tries: int
    ) -> None:
        items = expand(inputs=inputs, prompts=prompts, negatives=negatives, tries=tries)
        found = [(item.input, item.payload.get("prompt"), item.payload.get("negative_prompt")) for item in items]
        lists: list[list[Any]] = [inputs, prompts, negatives]
        combinations = itertools.product(*(values or [None] for values in lists))
        assert found == [combination for combination in combinations for _ in range(tries)]

    def test_empty_request_is_one_item_with_the_defaults(self) -> None:
        assert expand() == [PlannedItem(input=None)]

    def test_items_have_the_common_values_and_listed_prompts_win(self) -> None:
        items = expand(prompts=["a", "b"], base={"steps": 4, "prompt": "x", "seed": 9})
        assert [item.payload for item in items] == [
            {"steps": 4, "prompt": "a", "seed": 9},
            {"steps": 4, "prompt": "b", "seed": 9},
        ]
        assert seeds_of(items) == [9, 9]

    def test_items_do_not_share_their_values(self) -> None:
        base = {"steps": 4}
        items = expand(base=base)
        base["steps"] = 5
        assert items[0].payload == {"steps": 4}

    def test_workflow_defines_the_keys_of_the_values(self) -> None:
        roles = {"prompt": "text", "seed": "noise_seed"}
        plan = SeedPlan(mode=SeedMode.FIXED, start=3)
        (item,) = expand(prompts=["a"], seeds=plan, roles=roles)
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
        assert len(expand(inputs=["x"] * 100, prompts=["y"] * 100)) == MAX_ITEMS


class TestPairwise:
    @given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=5), names, try_counts)
    def test_inputs_and_prompts_are_paired_by_position(
        self, pairs: list[tuple[str, str]], negatives: list[str], tries: int
    ) -> None:
        inputs, prompts = zip(*pairs, strict=True)
        items = expand(inputs=inputs, prompts=prompts, negatives=negatives, tries=tries, mode=Mode.PAIRWISE)
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
        assert seeds_of(expand(tries=2)) == [None, None]

    @given(plans, st.integers(1, 50))
    def test_each_item_has_a_valid_seed_that_matches_its_payload(self, plan: SeedPlan, tries: int) -> None:
        items = expand(tries=tries, seeds=plan, rng=random.Random(1))
        assert all(item.seed is not None and 0 <= item.seed <= plan.maximum for item in items)
        assert [item.payload["seed"] for item in items] == seeds_of(items)

    def test_fixed_seed_is_the_same_for_all_items(self) -> None:
        plan = SeedPlan(mode=SeedMode.FIXED, start=MAX_SEED)
        assert seeds_of(expand(prompts=["a", "b"], seeds=plan)) == [MAX_SEED] * 2

    def test_incremented_seed_continues_over_all_items(self) -> None:
        plan = SeedPlan(mode=SeedMode.INCREMENT, start=7)
        assert seeds_of(expand(prompts=["a", "b"], tries=2, seeds=plan)) == [7, 8, 9, 10]

    def test_seed_wraps_around_after_the_largest(self) -> None:
        plan = SeedPlan(mode=SeedMode.INCREMENT, start=MAX_SEED)
        assert seeds_of(expand(tries=3, seeds=plan)) == [MAX_SEED, 0, 1]

    @given(st.integers(0, 100), st.integers(1, 60))
    def test_random_seeds_are_distinct_if_the_range_allows(self, largest: int, tries: int) -> None:
        items = expand(tries=tries, seeds=SeedPlan(maximum=largest), rng=random.Random(tries))
        assert len(set(seeds_of(items))) == min(tries, largest + 1)

    def test_random_seeds_come_from_the_given_source(self) -> None:
        one, same, other = (seeds_of(expand(tries=9, seeds=SeedPlan(), rng=random.Random(n))) for n in (1, 1, 2))
        assert one == same != other

    def test_random_seeds_are_exact_in_javascript(self) -> None:
        found = seeds_of(expand(tries=1000, seeds=SeedPlan(), rng=random.Random(1)))
        assert all(seed is not None and float(seed) == seed < 2**53 for seed in found)

    @pytest.mark.parametrize("plan", [SeedPlan(start=-1), SeedPlan(start=MAX_SEED + 1), SeedPlan(start=5, maximum=4)])
    def test_start_out_of_range_is_refused(self, plan: SeedPlan) -> None:
        assert list(refusal(seeds=plan).errors) == ["seed"]


class TestLabels:
    def test_label_names_input_prompt_and_attempt(self) -> None:
        items = expand(inputs=[Path("in/red fox.png")], prompts=["walks\n on"], tries=2)
        assert [item.label for item in items] == ["red fox · walks on · try 1", "red fox · walks on · try 2"]

    def test_long_prompt_is_cut_between_words(self) -> None:
        (item,) = expand(prompts=["word " * 100])
        assert item.label == " ".join(["word"] * 12) + "…"
