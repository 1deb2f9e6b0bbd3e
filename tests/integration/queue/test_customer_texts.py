"""Users of an effect never see texts that are meant for operators."""

import inspect
import re

import pytest

from comfyrelay import errors
from comfyrelay.domain.queue.customer_texts import REFUNDED, failure_text, progress_for_customer, waiting_for_customer
from comfyrelay.domain.queue.memory import every_gpu_failed, larger_gpu_reason, ran_out_reason
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from comfyrelay.errors import ComfyRelayError, Fault
from tests.support.full import full_only
from tests.support.world import Desk, World

GIB = 1024**3
OPERATOR_WORDS = re.compile(
    r"COMFYRELAY|ComfyUI|\bnodes?\b|\bmodels?\b|\bGPUs?\b|CUDA|worker|lease|shard|database|queue|dispatch|graph|workflow"
    r"|exception|traceback|safetensors|checkpoint|postgres|tensor|\b[A-Z]\w+[A-Z]\w+\b|_|/",
)
# Names of file types.
HARMLESS = re.compile(r"\b(PNG|JPEG|MP4)\b")
CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, ComfyRelayError) and found is not ComfyRelayError
]
TEXTS = [
    "The worker stopped responding.",
    "All attempts were used up.",
    "The workflow of this job no longer exists.",
    "KSampler (3): mat1 and mat2 shapes cannot be multiplied",
    "Value not in list: ckpt_name: 'wan2.safetensors' not in ['a.safetensors']",
    "ValueError: /srv/comfy/custom_nodes/x.py: COMFYRELAY_STORAGE_URL is not set",
    "database tenants-main.db is locked",
    every_gpu_failed("Out of memory", [8 * GIB, None]),
    larger_gpu_reason(8 * GIB),
    ran_out_reason(None),
    "",
]


def is_for_customers(text: str) -> bool:
    return OPERATOR_WORDS.search(HARMLESS.sub("", text)) is None and text.endswith(".")


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


@pytest.mark.parametrize("error", [*TEXTS[:3], *full_only(*TEXTS[3:])])
async def test_failed_job_says_what_happened_and_that_tokens_are_returned(world: World, desk: Desk, error: str) -> None:
    job, leased = await desk.submit_and_lease()
    assert await world.fail(leased, error=error, fault=Fault.JOB) == "failed"
    found = await world.engine.jobs.views.job(job.tenant_id, job.id)
    assert found.job.error_message is not None
    assert is_for_customers(found.job.error_message)
    assert found.job.error_message.endswith(REFUNDED)
    assert found.refunded_tokens == job.reserved_tokens
    page = await world.engine.jobs.views.history(job.tenant_id, job.id, after_seq=0, limit=50)
    events = [event.data for event in page.items]
    assert all(is_for_customers(str(data["error"])) for data in events if "error" in data)
    # Operators see the raw text, followed by advice if memory ran out.
    assert (found.job.error_detail or "").startswith(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", ["", *TEXTS])
def test_every_error_has_a_sentence_for_customers(kind: type[ComfyRelayError], text: str) -> None:
    docstring = inspect.getdoc(kind) or ""
    for raw in (docstring, f"{docstring} {text}", f"{kind.__name__}: {text}"):
        said = failure_text(raw, is_refunded=True)
        assert is_for_customers(said), said
        assert said.endswith(REFUNDED)


@pytest.mark.parametrize("reason", list(Reason))
def test_wait_reason_is_written_for_customers(reason: Reason) -> None:
    texts = {Reason.PAUSED: "Paused.", Reason.HELD: "On hold.", Reason.QUEUE_PAUSED: "Your queue is paused."}
    raw = texts.get(reason, "No online worker has this workflow: CheckpointLoader is missing.")
    shown = waiting_for_customer(Waiting(reason=reason, text=raw)).text
    assert shown == raw or is_for_customers(shown)
    assert shown != raw or reason in {*texts, Reason.NOT_BEFORE, Reason.NOT_WAITING}


def test_progress_names_no_part_of_the_graph_or_of_the_server() -> None:
    report = {"value": 0.5, "phase": "running", "step": 3, "steps": 20, "node": "KSampler", "server": "gpu-1", "x": "y"}
    assert progress_for_customer(report) == {"value": 0.5, "phase": "running", "step": 3, "steps": 20}
    assert progress_for_customer({"phase": "Loading wan2.safetensors", "value": 0}) == {"value": 0}
    assert progress_for_customer({"phase": "starting again"}) == {"phase": "starting again"}
    assert progress_for_customer(None) is None
