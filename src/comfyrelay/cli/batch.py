"""`comfyrelay batch add`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from comfyrelay.cli import completion
from comfyrelay.cli.connection import APPRISE, Json, Url, connected, print_json
from comfyrelay.cli.run_arguments import (
    SubmitTarget,
    check_files,
    errors_as_typed,
    find_target,
    refused_leaves_nothing,
    send_files,
)
from comfyrelay.cli.run_options import (
    Anyway,
    MaxWait,
    Reuse,
    Values,
    What,
    original_seeds,
    preset_values,
    print_remarks,
)
from comfyrelay.domain.bulk import Mode, SeedMode
from comfyrelay.errors import InvalidInput

if TYPE_CHECKING:
    from comfyrelay.client import Batch, Client, Done

batch_app = typer.Typer(no_args_is_help=True, help="Many jobs at once: a folder of inputs, a list of prompts.")
out = Console()
err = Console(stderr=True)

# The longest name of a batch.
LONGEST_LABEL = 200

Inputs = Annotated[
    list[Path] | None, typer.Option("--input", help="A file, or a folder of files, to work on. Repeat for more.")
]
InputSubdir = Annotated[
    list[str] | None, typer.Option(help="A folder inside the desk's input folder. Repeat for more.")
]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="A prompt. Repeat for more.")]
PromptFile = Annotated[Path | None, typer.Option(help="Prompts, one in each line, or blocks between ---.")]
Negatives = Annotated[list[str] | None, typer.Option("--negative", help="A negative prompt. Repeat for more.")]
Tries = Annotated[int, typer.Option(help="How many times each is run.", min=1, max=1000)]
Seeds = Annotated[
    SeedMode | None, typer.Option(help="The seeds of the items. Default: random ones, if the workflow has a seed.")
]
FirstSeed = Annotated[
    int | None, typer.Option(help="The seed of all, or the first one to count from.", min=0, max=2**64 - 1)
]
Pairwise = Annotated[bool, typer.Option("--pairwise", help="Input n with prompt n, not all combinations.")]
Preset = Annotated[
    str | None, typer.Option(help="A preset whose values all items have.", autocompletion=completion.presets)
]
Label = Annotated[str | None, typer.Option(help="The name of the batch. Default: the name of the workflow.")]
OutputFolder = Annotated[str | None, typer.Option(help="Its folder inside the desk's output folder.")]
Priority = Annotated[int, typer.Option(help="Higher runs first.")]
Notify = Annotated[list[str] | None, typer.Option(help=f"Whom to notify when it ends: {APPRISE} Repeat for more.")]


@batch_app.command("add")
def batch_add(
    what: What,
    inputs: Inputs = None,
    input_subdir: InputSubdir = None,
    prompts: Prompts = None,
    prompt_file: PromptFile = None,
    negatives: Negatives = None,
    tries: Tries = 1,
    seed_mode: Seeds = None,
    seed: FirstSeed = None,
    pairwise: Pairwise = False,
    values: Values = None,
    preset: Preset = None,
    label: Label = None,
    output_folder: OutputFolder = None,
    priority: Priority = 0,
    max_wait: MaxWait = None,
    notify: Notify = None,
    anyway: Anyway = False,
    reuse: Reuse = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add a batch to a running desk or server: inputs × prompts × negative prompts × tries, each with its own seed."""
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
        "preset": preset,
        "output_folder": output_folder,
        "priority": priority,
        "notify_urls": notify,
        "wait_for_missing": anyway or None,
        "reuse": reuse or None,
    }
    request = _BatchCommand(what=what, values=values or [], files=files, max_wait_seconds=max_wait, body=body)
    added = connected(url, request.send)
    batch, remark = added.data, added.message.removeprefix("Submitted.").strip()
    if remark:
        err.print(remark, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print_json(batch)
    else:
        jobs = "1 job" if batch.total == 1 else f"{batch.total} jobs"
        out.print(f"Added batch {batch.id} with {jobs}.", highlight=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class _BatchCommand:
    """The command line of `batch add`. `body` is the request to a desk, without target, values and files."""

    what: str
    values: list[str]
    files: list[Path]
    max_wait_seconds: int | None
    body: dict[str, Any]

    async def send(self, client: Client) -> Done[Batch]:
        async with refused_leaves_nothing(client, self.what):
            return await (self._add_to_desk(client) if await client.is_desk() else self._add_to_server(client))

    async def _add_to_desk(self, client: Client) -> Done[Batch]:
        if self.max_wait_seconds is not None:
            raise InvalidInput("--max-wait: the batches of a desk wait as long as it takes. Leave it out.")
        target, works_on, others = await self._upload(client)
        given = {
            **self.body,
            # an effect is named by its slug
            **({"effect_slug": self.what} if "effect_id" in target.named else target.named),
            "label": self._label(target),
            "values": {**self._original_seeds(target), **target.values, **others},
            "input_file_ids": works_on,
        }
        with errors_as_typed(target, has_input=bool(works_on or self.body["input_subdir"])):
            return await client.add_batch_with_message(given)

    async def _add_to_server(self, client: Client) -> Done[Batch]:
        """A server takes items, so the combinations are expanded here, the same way as on a desk."""
        from comfyrelay.client import Done
        from comfyrelay.desk.batches.expand import SeedPlan, expand
        from comfyrelay.desk.batches.planning import roles_of, seed_plan

        body = self.body
        self._refuse_desk_options(client.url)
        target, works_on, others = await self._upload(client)
        # by name, because labels contain the names
        named: list[Path | str] = [*self.files] or [each for key, each in target.files.items() if key == target.primary]
        ids = dict(zip(named, works_on, strict=True))
        of_preset = await preset_values(client, body["preset"], target)
        base = {**self._original_seeds(target), **of_preset, **target.values, **others}
        properties = target.as_properties()
        seeds = None if body["seeds"] is None else SeedPlan(**body["seeds"])
        items = expand(
            inputs=named,
            prompts=body["prompts"],
            negatives=body["negative_prompts"],
            tries=body["tries"],
            seeds=seed_plan(properties, seeds, base),
            mode=Mode(body["mode"]),
            base=base,
            roles=roles_of(properties),
        )
        bodies = [
            {
                "input_payload": dict(item.payload),
                "input_file_id": None if item.input is None else ids[item.input],
                "label": item.label or None,
            }
            for item in items
        ]
        with errors_as_typed(target, has_input=bool(works_on)):
            batch = await client.submit_batch(
                bodies,
                **target.named,
                label=self._label(target),
                priority=body["priority"],
                wait_for_missing=bool(body["wait_for_missing"]),
                max_wait_seconds=self.max_wait_seconds,
                reuse=bool(body["reuse"]),
            )
        return Done(batch, "")

    async def _upload(self, client: Client) -> tuple[SubmitTarget, list[str], dict[str, Any]]:
        """The target, the ids of the input files, and the ids of other files by property."""
        target = await find_target(client, self.what, self.values)
        print_remarks(target)
        return target, *await send_files(client, target, self.files)

    def _label(self, target: SubmitTarget) -> str:
        return self.body["label"] or target.title[:LONGEST_LABEL]

    def _original_seeds(self, target: SubmitTarget) -> dict[str, Any]:
        """As in a single run, unless the batch varies seeds."""
        has_own = self.body["tries"] > 1 or self.body["seeds"] is not None
        return {} if has_own else original_seeds(self.what, target)

    def _refuse_desk_options(self, url: str) -> None:
        names = {"input_subdir": "--input-subdir", "output_folder": "--output-folder", "notify_urls": "--notify"}
        if given := [option for name, option in names.items() if self.body[name]]:
            raise InvalidInput(
                f"{', '.join(given)}: only a desk has folders and notifications, and {url} is a server. Name files "
                "with --input; `comfyrelay show` says where the outputs are."
            )


def _media_in(folder: Path) -> list[Path]:
    from comfyrelay.desk.batches.folders import inputs_in

    found = inputs_in(folder)
    if not found:
        raise InvalidInput(f"There are no images, videos or audio files in {str(folder)!r}.")
    return found


def _seeds(mode: SeedMode | None, start: int | None) -> dict[str, Any] | None:
    if mode is SeedMode.RANDOM and start is not None:
        raise InvalidInput("--seed is for --seed-mode fixed and increment: random seeds have no start.")
    if mode is None and start is None:
        return None
    return {"mode": mode or SeedMode.INCREMENT, "start": start or 0}
