"""Wildcards in prompts are read, chosen and combined."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.desk.batches import expand
from comfyrelay.desk.batches.expand import SeedPlan
from comfyrelay.desk.batches.planning import BatchLists, plan_items
from comfyrelay.desk.batches.wildcards import MAX_FILE_BYTES, Wildcards
from comfyrelay.domain.bulk import SeedMode, WildcardMode
from comfyrelay.domain.properties import Property
from comfyrelay.errors import InvalidInput

PROPERTIES = [
    Property.from_json({"placeholder": fields["key"], "user_configurable": True, **fields})
    for fields in (
        {"key": "prompt", "type": "text", "default_value": "a {red|blue} fox"},
        {"key": "negative", "type": "text"},
        {"key": "seed", "type": "number", "is_whole": True},
    )
]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def combinations(text: str, folder: Path | None = None) -> list[str]:
    template = Wildcards(folder=folder).template(text)
    found = template.all()
    assert len(found) == template.count
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a {red|blue} fox", ["a red fox", "a blue fox"]),
        ("{a|b}{1|2}", ["a1", "a2", "b1", "b2"]),
        ("{a|{b|c} d}", ["a", "b d", "c d"]),
        ("a {big |}fox", ["a big fox", "a fox"]),
        (r"\{a\|b\} \__x__", ["{a|b} __x__"]),
        (r"(fox:1.2) \(series\) a|b }", [r"(fox:1.2) \(series\) a|b }"]),
        ('{"style": "ink"}', ['{"style": "ink"}']),
        ("{only {a|b}}", ["{only a}", "{only b}"]),
        ("a {b|c", ["a b", "a c"]),
        ("{a|{b|c} d", ["a", "b d", "c d"]),
        ("{a|{b|c", ["a", "b", "c"]),
        ("a { b {c|d}", ["a { b c", "a { b d"]),
        ("snake_case __ and _x_", ["snake_case __ and _x_"]),
    ],
)
def test_braces_have_all_their_options(text: str, expected: list[str]) -> None:
    assert combinations(text) == expected


@given(st.text(alphabet="ab{}|\\_ \n", max_size=12))
def test_every_choice_is_one_of_the_combinations(text: str) -> None:
    try:
        template = Wildcards(folder=None).template(text)
    except InvalidInput:
        return
    assert template.pick(random.Random(1)) in template.all()


def test_file_gives_its_lines_and_may_name_other_files(tmp_path: Path) -> None:
    write(tmp_path, "colors", "# warm\nred\n\n  deep {blue|green}  \n")
    write(tmp_path, "animals/forest-birds", "__colors__ jay\nowl")
    assert combinations("__colors__ fox", tmp_path) == ["red fox", "deep blue fox", "deep green fox"]
    found = combinations("an __animals/forest-birds__", tmp_path)
    assert found == ["an red jay", "an deep blue jay", "an deep green jay", "an owl"]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "a/../../secret", ".hidden"])
def test_names_that_lead_out_of_the_folder_are_plain_text(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "wildcards"
    folder.mkdir()
    assert combinations(f"__{name}__", folder) == [f"__{name}__"]


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "wildcards"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(InvalidInput, match="leads out of the wildcards folder"):
        combinations("__link__", folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x" * (MAX_FILE_BYTES + 1), "is larger than"),
        (b"\xff\xfe", "is not text in UTF-8"),
        (b"# only a comment\n", "no usable line"),
        (b"a __bad__", "nested more than"),
    ],
)
def test_unusable_file_is_refused_with_its_name(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InvalidInput, match=reason):
        combinations("__bad__", tmp_path)


def test_files_that_many_lines_name_are_counted_once(tmp_path: Path) -> None:
    # Counting a file again for each line would take hours.
    for number in range(6):
        line = f"__f{number + 1}__ x" if number < 5 else "x"
        (tmp_path / f"f{number}.txt").write_text("\n".join([line] * 60))
    assert Wildcards(folder=tmp_path).template("__f0__").count == 60**6


def test_missing_file_and_deep_nesting_are_explained(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no file colors\.txt in the folder 'wildcards'"):
        combinations("__colors__", tmp_path)
    with pytest.raises(InvalidInput, match="Only a desk"):
        combinations("__colors__")
    with pytest.raises(InvalidInput, match="nested more than"):
        combinations("{" * 50)


class TestPlan:
    def test_prompts_are_unchanged_unless_wildcards_are_on(self) -> None:
        [item] = plan_items(BatchLists(prompts=["{a|b} __x__"]), PROPERTIES, base={}).items
        assert item.payload == {"prompt": "{a|b} __x__"}

    def test_each_job_gets_its_own_choice_in_its_values_and_label(self) -> None:
        lists = BatchLists(prompts=["a {red|blue|green} fox"], tries=60, wildcards=WildcardMode.RANDOM)
        found = plan_items(lists, PROPERTIES, base={})
        prompts = {item.payload["prompt"] for item in found.items}
        assert prompts == {"a red fox", "a blue fox", "a green fox"}
        assert all(item.label.startswith(item.payload["prompt"]) for item in found.items)

    def test_total_length_of_drawn_prompts_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(expand, "MAX_DRAWN_CHARACTERS", 100)
        lists = BatchLists(prompts=["{a|b}" + "x" * 9], tries=10, wildcards=WildcardMode.RANDOM)
        assert len(plan_items(lists, PROPERTIES, base={}).items) == 10
        with pytest.raises(InvalidInput, match="too long"):
            plan_items(replace(lists, tries=11), PROPERTIES, base={})

    def test_given_seed_repeats_the_choices(self) -> None:
        plan = SeedPlan(mode=SeedMode.INCREMENT, start=7)
        lists = BatchLists(prompts=["{a|b|c|d}"], tries=20, seeds=plan, wildcards=WildcardMode.RANDOM)
        one, same = (plan_items(lists, PROPERTIES, base={}).items for _ in range(2))
        assert one == same
        assert len({item.payload["prompt"] for item in one}) > 1

    def test_default_prompt_may_have_wildcards(self) -> None:
        lists = BatchLists(wildcards=WildcardMode.RANDOM, tries=40)
        found = plan_items(lists, PROPERTIES, base={})
        assert {item.payload["prompt"] for item in found.items} == {"a red fox", "a blue fox"}

    def test_all_combinations_are_an_axis(self) -> None:
        lists = BatchLists(prompts=["{a|b} x", "y"], wildcards=WildcardMode.ALL)
        found = plan_items(lists, PROPERTIES, base={"negative": "{c|d}"})
        pairs = [(item.payload["prompt"], item.payload["negative"]) for item in found.items]
        assert pairs == [(prompt, negative) for prompt in ("a x", "b x", "y") for negative in "cd"]
        assert [(axis.key, list(axis.values)) for axis in found.axes] == [
            ("prompt", ["a x", "b x", "y"]),
            ("negative", ["c", "d"]),
        ]

    def test_too_many_combinations_name_the_field(self) -> None:
        lists = BatchLists(prompts=["{0|1|2|3|4|5|6|7|8|9}" * 5], wildcards=WildcardMode.ALL)
        with pytest.raises(InvalidInput, match="100,000 combinations") as refused:
            plan_items(lists, PROPERTIES, base={})
        assert list(refused.value.errors) == ["prompt"]

    def test_combinations_beyond_counting_are_refused(self) -> None:
        lists = BatchLists(prompts=["{a|b}" * 15_000], wildcards=WildcardMode.ALL)
        with pytest.raises(InvalidInput, match="more than 1,000,000,000 combinations"):
            plan_items(lists, PROPERTIES, base={})
