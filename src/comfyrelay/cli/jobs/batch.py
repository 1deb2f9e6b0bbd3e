"""`comfyrelay batch add`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comfyrelay.cli.jobs.connection import Url, connected, note_pause
from comfyrelay.cli.jobs.submit_options import Anyway, MaxWait, Preset, Reuse, Values, What, base_values
from comfyrelay.cli.jobs.targets import (
    SubmitTarget,
    check_files,
    errors_with_options,
    find_key,
    find_target,
    remove_added,
    send_files,
    split_assignment,
)
from comfyrelay.cli.options import APPRISE, Json
from comfyrelay.cli.output import print_note, print_result
from comfyrelay.domain.bulk import Mode, SeedMode, WildcardMode
from comfyrelay.errors import InvalidInput

if TYPE_CHECKING:
    from comfyrelay.client import ActionResult, Batch, Client

batch_app = typer.Typer(
    no_args_is_help=True, help="Add many jobs at once, from a folder of inputs or a list of prompts."
)
MAX_LABEL_LENGTH = 200

PromptFile = Annotated[
    Path | None, typer.Option(help="A file with one prompt per line, or blocks separated by lines of ---.")
]
ChosenSeedMode = Annotated[
    SeedMode | None, typer.Option(help="How to choose seeds. Default: increment with --seed, otherwise random.")
]
FirstSeed = Annotated[
    int | None, typer.Option(help="The seed of all jobs, or the first seed to count from.", min=0, max=2**64 - 1)
]
Pairwise = Annotated[
    bool, typer.Option("--pairwise", help="Combine value n of inputs, prompts and sweeps, instead of all values.")
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="PROPERTY=VALUES to combine with the other lists: 10,20,30, a range 1..8:0.5, random values 5 of 1..8 "
        "or, for all choices, *. Repeatable."
    ),
]
Wildcards = Annotated[
    WildcardMode,
    typer.Option(help="Replace {a|b} and __name__ in prompts: a random choice per job, or all combinations."),
]


@batch_app.command("add")
def batch_add(
    what: What,
    inputs: Annotated[list[Path] | None, typer.Option("--input", help="An input file or folder. Repeatable.")] = None,
    input_subdir: Annotated[
        list[str] | None, typer.Option(help="A folder inside the desk's input folder. Repeatable.")
    ] = None,
    prompts: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt. Repeatable.")] = None,
    prompt_file: PromptFile = None,
    negatives: Annotated[list[str] | None, typer.Option("--negative", help="A negative prompt. Repeatable.")] = None,
    tries: Annotated[int, typer.Option(help="Runs per combination.", min=1, max=1000)] = 1,
    seed_mode: ChosenSeedMode = None,
    seed: FirstSeed = None,
    pairwise: Pairwise = False,
    sweep: Sweep = None,
    wildcards: Wildcards = WildcardMode.OFF,
    values: Values = None,
    preset: Preset = None,
    label: Annotated[str | None, typer.Option(help="Name of the batch. Default: the name of the workflow.")] = None,
    output_folder: Annotated[
        str | None, typer.Option(help="Folder inside the desk's output folder. Default: from the label.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Jobs with a higher priority run first.")] = 0,
    max_wait: MaxWait = None,
    notify: Annotated[
        list[str] | None, typer.Option(help=f"Notify this recipient when the batch ends: an {APPRISE} Repeatable.")
    ] = None,
    anyway: Anyway = False,
    reuse: Reuse = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add a batch of jobs to the running desk or server.

    The batch has one job for each combination of inputs, prompts, negative prompts and --sweep values, times --tries.
    """
    from comfyrelay.desk.batches.folders import prompts_from

    texts = [*(prompts or []), *(prompts_from(prompt_file) if prompt_file else [])]
    files = [file for path in inputs or [] for file in (_media_in(path) if path.is_dir() else [path])]
    check_files(what, files)
    body: dict[str, Any] = {
        "label": label,
        "input_subdir": input_subdir or None,
        "prompts": texts,
        "negative_prompts": negatives or [],
        "tries": tries,
        "seeds": _seeds(seed_mode, seed),
        "mode": "pairwise" if pairwise else "product",
        "wildcards": wildcards,
        "preset": preset,
        "output_folder": output_folder,
        "priority": priority,
        "notify_urls": notify,
        "wait_for_missing": anyway or None,
        "reuse": reuse or None,
    }
    request = _BatchCommand(
        what=what, values=values or [], sweep=sweep or [], files=files, max_wait_seconds=max_wait, body=body
    )
    added = connected(url, request.send)
    batch, remark = added.data, added.message.removeprefix("Submitted.").strip()
    if remark:
        print_note(remark)
    jobs = "1 job" if batch.total == 1 else f"{batch.total} jobs"
    print_result(batch, f"Added batch {batch.id} with {jobs}.", as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class _BatchCommand:
    """The arguments of `batch add`. `body` is the request to a desk, without the target, values and files."""

    what: str
    values: list[str]
    sweep: list[str]
    files: list[Path]
    max_wait_seconds: int | None
    body: dict[str, Any]

    async def send(self, client: Client) -> ActionResult[Batch]:
        async with remove_added(client, self.what, if_refused=True) as added:
            add = self._add_to_desk if await client.is_desk() else self._add_to_server
            done = await add(client, added)
        await note_pause(client)
        return done

    async def _add_to_desk(self, client: Client, added: set[str]) -> ActionResult[Batch]:
        if self.max_wait_seconds is not None:
            raise InvalidInput("--max-wait: A desk has no more expensive fleet. Omit the option.")
        target, input_ids, files = await self._upload(client, added)
        # The desk applies the preset itself.
        values = await base_values(client, self.what, target, preset=None, keeps_seeds=self._keeps_seeds)
        request = {
            **self.body,
            # An effect is identified by its slug.
            **({"effect_slug": self.what} if "effect_id" in target.named else target.named),
            "label": self._label(target),
            "values": values | files,
            "sweep": _sweep(target, self.sweep),
            "input_file_ids": input_ids,
        }
        with errors_with_options(target, has_input=bool(input_ids or self.body["input_subdir"])):
            return await client.add_batch_with_message(request)

    async def _add_to_server(self, client: Client, added: set[str]) -> ActionResult[Batch]:
        """Expand the combinations in the same way as a desk, because a server takes items."""
        from comfyrelay.client import ActionResult
        from comfyrelay.desk.batches.expand import SeedPlan
        from comfyrelay.desk.batches.planning import BatchLists, plan_items

        body = self.body
        self._refuse_desk_options(client.url)
        target, input_ids, files = await self._upload(client, added)
        # Labels contain the names of the inputs.
        names: list[Path | str] = [*self.files] or [file for key, file in target.files.items() if key == target.primary]
        ids = dict(zip(names, input_ids, strict=True))
        values = await base_values(client, self.what, target, preset=body["preset"], keeps_seeds=self._keeps_seeds)
        base = values | files
        lists = BatchLists(
            inputs=names,
            prompts=body["prompts"],
            negatives=body["negative_prompts"],
            sweep=_sweep(target, self.sweep),
            tries=body["tries"],
            seeds=None if body["seeds"] is None else SeedPlan(**body["seeds"]),
            mode=Mode(body["mode"]),
            wildcards=WildcardMode(body["wildcards"]),
        )
        with errors_with_options(target, has_input=bool(input_ids)):
            expanded = plan_items(lists, target.as_properties(), base=base)
        bodies = [
            {
                "input_payload": dict(item.payload),
                "input_file_id": None if item.input is None else ids[item.input],
                "label": item.label or None,
            }
            for item in expanded.items
        ]
        with errors_with_options(target, has_input=bool(input_ids)):
            batch = await client.submit_batch(
                bodies,
                **target.named,
                axes=[asdict(axis) for axis in expanded.axes],
                label=self._label(target),
                priority=body["priority"],
                wait_for_missing=bool(body["wait_for_missing"]),
                max_wait_seconds=self.max_wait_seconds,
                reuse=bool(body["reuse"]),
            )
        return ActionResult(batch, "")

    async def _upload(self, client: Client, added: set[str]) -> tuple[SubmitTarget, list[str], dict[str, Any]]:
        """Return the target, the ids of the input files, and the ids of other files by property."""
        target = await find_target(client, self.what, self.values, added)
        return target, *await send_files(client, target, self.files)

    def _label(self, target: SubmitTarget) -> str:
        return self.body["label"] or target.title[:MAX_LABEL_LENGTH]

    @property
    def _keeps_seeds(self) -> bool:
        """Whether the batch runs with the seeds of a file that ComfyUI made, like a single run."""
        return self.body["tries"] == 1 and self.body["seeds"] is None

    def _refuse_desk_options(self, url: str) -> None:
        names = {"input_subdir": "--input-subdir", "output_folder": "--output-folder", "notify_urls": "--notify"}
        if given := [option for name, option in names.items() if self.body[name]]:
            raise InvalidInput(
                f"{', '.join(given)}: Only a desk has folders and notifications, and {url} is a server. Name files "
                "with --input. `comfyrelay show` shows the outputs."
            )


def _sweep(target: SubmitTarget, assignments: Sequence[str]) -> dict[str, str]:
    """Return the values to sweep by property."""
    pairs = [split_assignment(assignment) for assignment in assignments]
    keys = [find_key(name, [property_.key for property_ in target.properties]) for name, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise InvalidInput(f"--sweep {twice[0]}: Give all values of a field in one option.")
    return dict(zip(keys, (values for _, values in pairs), strict=True))


def _media_in(folder: Path) -> list[Path]:
    from comfyrelay.desk.batches.folders import inputs_in

    found = inputs_in(folder)
    if not found:
        raise InvalidInput(f"There are no images, videos or audio files in {str(folder)!r}.")
    return found


def _seeds(mode: SeedMode | None, start: int | None) -> dict[str, Any] | None:
    if mode is SeedMode.RANDOM and start is not None:
        raise InvalidInput("--seed is for --seed-mode fixed and increment. Random seeds have no first value.")
    if mode is None and start is None:
        return None
    return {"mode": mode or SeedMode.INCREMENT, "start": start or 0}
