"""The documentation of scripts matches the code."""

import asyncio
import re
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.script_runs import settings_in

PAGE = (ROOT / "docs" / "howto" / "scripts.md").read_text("utf-8")


async def test_documented_example_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    settings_in(tmp_path)
    (tmp_path / "hello.py").write_text("print('seed: 3')\nprint('50%')\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", example, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().splitlines()[-1] == "0 None [] 3"
