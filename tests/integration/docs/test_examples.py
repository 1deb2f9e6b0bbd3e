"""The examples of the guides and of the pool's reference run and print the expected output."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import orjson
import pytest

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.simulator import Simulator
from tests.support.gpu_pool import SMALL, picture
from tests.support.graphs import PNG, invert_file
from tests.support.paths import ROOT
from tests.support.world import PATIENCE_SECONDS

PAGE = ROOT / "docs" / "howto" / "run-graphs.md"
LIBRARY_PAGE = ROOT / "docs" / "howto" / "library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
SHOWN = [
    ["image/png True"],
    ["['a \"quoted\" name.png'] [] ['3']"],
    ["0% Input", "33% ImageInvert", "67% SaveImage", "made 1 file"],
    ["SaveImage (3): input 'images' is not connected"],
    ["10 done"],
    # the strategy example prints nothing
    [],
    ["attempt 1", "made image/png"],
    ["7 image/png"],
]
POOL_PAGE = ROOT / "docs" / "reference" / "pool.md"
POOL_PROGRAM, *POOL_BODIES = re.findall(r"^```python\n(.*?)^```", POOL_PAGE.read_text("utf-8"), re.M | re.S)
POOL_SHOWN = [
    ["image/png"],
    ["b"],
    ["within ten minutes"],
    ["queue_full"],
    ["('hello',)"],
    ["True"],
    ["['4.seed']"],
]


def test_every_example_has_an_expected_output() -> None:
    assert len(EXAMPLES) == len(SHOWN)


@pytest.mark.parametrize(("example", "shown"), list(zip(EXAMPLES, SHOWN, strict=True)))
async def test_example_prints_expected_output(example: str, shown: list[str], tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(orjson.dumps(invert_file()))
    (tmp_path / "cat.png").write_bytes(PNG)
    await check_output(example, shown, tmp_path)


def pool_programs() -> list[str]:
    """Return the program of the page, and each other example as the body of its `main`."""
    head, _, rest = POOL_PROGRAM.partition("async def main() -> None:\n")
    end = rest[rest.index("\n\n\nasyncio.run") :]
    bodies = [f"{head}async def main() -> None:\n{indent(body, '    ')}{end}" for body in POOL_BODIES]
    return [POOL_PROGRAM, *bodies]


@pytest.mark.parametrize(("program", "shown"), list(zip(pool_programs(), POOL_SHOWN, strict=True)))
async def test_example_of_the_pool_prints_expected_output(program: str, shown: list[str], tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(orjson.dumps(picture(7)))
    await check_output(program, shown, tmp_path)


async def check_output(program: str, shown: list[str], tmp_path: Path) -> None:
    models = {"checkpoints": [SMALL]}
    async with Simulator(models=models) as one, Simulator(models=models) as other:
        code = program.replace("http://127.0.0.1:8188", one.url).replace("http://127.0.0.1:8189", other.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().splitlines() == shown


def test_engine_example_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", LIBRARY_PAGE.read_text("utf-8"), re.M | re.S)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
            f"{ENV_PREFIX}DATA_DIR": str(tmp_path / "data"),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["a lighthouse in the rain", "completed 93"]
