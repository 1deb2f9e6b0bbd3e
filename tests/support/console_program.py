"""A program that has a worker's console. It runs the given code between open and close, and exits only on request.

It imports little, because every test starts a new process.
"""

import sys

import structlog

from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.console import WorkerConsole
from comfyrelay.worker.lease import Lease
from tests.support.leases import make_lease

JOB = "0192f0c1-aaaa-7bbb-8ccc-1234abcd5678"
OTHER_JOB = "0192f0c1-aaaa-7bbb-8ccc-1234abcd9999"
HASH = "9f8e7d6c" * 8
SIGNED = "https://bucket.s3.example.com/in/cat.png?X-Amz-Credential=AKID&X-Amz-Signature=5161"
log = structlog.get_logger("any")


def lease(job_id: str = JOB, *, phase: Phase = Phase.RUNNING, progress: float = 0.0, node_title: str = "") -> Lease:
    return make_lease(
        7,
        lease_token="a-lease-token-that-opens",
        job_id=job_id,
        workflow_hash=HASH,
        workflow={"1": {"class_type": "CLIPTextEncode", "inputs": {"text": "a very private cat"}}},
        output_url=SIGNED,
        phase=phase,
        progress=progress,
        node_title=node_title,
    )


def main() -> None:
    with WorkerConsole() as console:
        exec(sys.argv[1], globals() | {"console": console})
        if sys.stderr.isatty():
            sys.stdin.readline()


if __name__ == "__main__":
    main()
