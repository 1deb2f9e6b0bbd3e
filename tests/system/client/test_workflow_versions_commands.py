"""`comfyrelay workflows` replaces a workflow of the same name, lists its versions and restores one."""

import copy
import json
from pathlib import Path
from typing import Any

from tests.support.chromium import PROMPT_GRAPH
from tests.support.client_site import Site


def written(folder: Path, steps: int) -> str:
    graph: dict[str, Any] = copy.deepcopy(PROMPT_GRAPH)
    graph["5"]["inputs"]["steps"] = steps
    path = folder / "mine.json"
    path.write_text(json.dumps(graph))
    return str(path)


async def test_changed_file_needs_a_choice_and_versions_can_be_restored(site: Site, tmp_path: Path) -> None:
    assert (await site.command("workflows", "add", written(tmp_path, 7))).code == 0
    changed = written(tmp_path, 9)
    refused = await site.command("workflows", "add", changed)
    assert refused.code != 0
    assert "--replace (keeps its jobs and presets) or --keep-both" in " ".join(refused.err.split())
    assert (await site.command("workflows", "add", changed, "--replace")).code == 0
    assert [workflow.name for workflow in await site.client.workflows()] == ["mine"]
    versions = json.loads((await site.command("workflows", "versions", "mine", "--json")).out)
    assert [version["number"] for version in versions] == [2, 1]
    assert "steps (7, now 9)" in versions[0]["changes"][0]
    brought = await site.command("workflows", "bring-back", "mine", "1")
    assert "Version 1 is back." in brought.out
    assert (await site.command("workflows", "add", changed, "--keep-both")).code == 0
    assert sorted(workflow.name for workflow in await site.client.workflows()) == ["mine", "mine (2)"]
