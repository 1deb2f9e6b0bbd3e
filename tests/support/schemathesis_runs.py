"""Run schemathesis against a server: it calls every operation of an OpenAPI document and checks the responses."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
MAX_FAILURES, MAX_CHARACTERS = 20, 20_000


async def check_responses(
    document: Path, url: str, token: str, *, phases: str, examples: int, skipped: str, only: str = ""
) -> None:
    """Fail if a response has a status, a content type or a body that the document does not describe.

    `only` and `skipped` are patterns of paths.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", document, "--url", url),
        *("--header", f"Authorization: Bearer {token}"),
        *("--checks", CHECKS, "--phases", phases, "--max-examples", str(examples)),
        *("--generation-deterministic", "--no-color", "--max-failures", str(MAX_FAILURES)),
        *("--include-path-regex", only, "--exclude-path-regex", skipped),
        stdout=PIPE,
        stderr=STDOUT,
        cwd=document.parent,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()[:MAX_CHARACTERS]
