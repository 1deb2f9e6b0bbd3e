"""Server errors become readable messages with the right fault."""

from typing import Any

import pytest

from comfyrelay.comfyui.failures import explain_execution_error
from comfyrelay.comfyui.graphs.explain import explain_refusal
from comfyrelay.errors import (
    ComfyError,
    DeviceFault,
    Fault,
    GraphRefused,
    InputMissing,
    ModelUnreadable,
    NodeFailed,
    NotInstalled,
    OutOfMemory,
    PaymentRequired,
)

TRACEBACK = ['  File "/home/gpu/ComfyUI/execution.py", line 496, in execute\n', "    raise\n"]


def refusal(kind: str, *, class_type: str = "KSampler", details: str = "", **extra: object) -> ComfyError:
    error = {"type": kind, "message": "Some message", "details": details, "extra_info": extra}
    return explain_refusal({"node_errors": {"12": {"class_type": class_type, "errors": [error]}}})


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (
            refusal("required_input_missing", input_name="model"),
            GraphRefused,
            "KSampler (12): input 'model' is not connected",
        ),
        (
            refusal("value_not_in_list", input_name="ckpt_name", received_value="sd.safetensors"),
            NotInstalled,
            "KSampler (12): the model 'sd.safetensors' is not installed on the server (input 'ckpt_name')",
        ),
        (
            refusal("value_not_in_list", input_name="file", received_value="extra.GGUF"),
            NotInstalled,
            "KSampler (12): the model 'extra.GGUF' is not installed on the server (input 'file')",
        ),
        (
            refusal("value_not_in_list", input_name="scheduler", received_value="magic"),
            GraphRefused,
            "KSampler (12): 'magic' is not a choice of input 'scheduler'",
        ),
        (
            refusal("value_smaller_than_min", input_name="steps", received_value=0, input_config=["INT", {"min": 1}]),
            GraphRefused,
            "KSampler (12): input 'steps' is 0, but must be at least 1",
        ),
        (
            refusal(
                "value_bigger_than_max", input_name="cfg", received_value=999, input_config=["FLOAT", {"max": 100}]
            ),
            GraphRefused,
            "KSampler (12): input 'cfg' is 999, but must be at most 100",
        ),
        (
            refusal("invalid_input_type", input_name="seed", received_value="x", input_config=["INT", {}]),
            GraphRefused,
            "KSampler (12): input 'seed' takes INT, not 'x'",
        ),
        (
            refusal("return_type_mismatch", input_name="model", received_type="VAE", input_config=["MODEL", {}]),
            GraphRefused,
            "KSampler (12): input 'model' takes MODEL, but is connected to VAE",
        ),
        (
            refusal("bad_linked_input", input_name="model"),
            GraphRefused,
            "KSampler (12): the link of input 'model' is not a node and an output number",
        ),
        (
            refusal("custom_validation_failed", input_name="image", details="image - Invalid image file: in/a.png"),
            InputMissing,
            "KSampler (12): the file 'in/a.png' is not on the server (input 'image')",
        ),
        (
            refusal("custom_validation_failed", input_name="image", details="image - must be square"),
            GraphRefused,
            "KSampler (12): image - must be square",
        ),
        (
            refusal("exception_during_validation", exception_type="KeyError", traceback=TRACEBACK),
            GraphRefused,
            "KSampler (12): an input is linked to a node that is not in the graph",
        ),
        (
            refusal("exception_during_inner_validation", exception_type="IndexError", traceback=TRACEBACK),
            GraphRefused,
            "KSampler (12): an input is linked to an output that its node does not have",
        ),
        (refusal("dependency_cycle"), GraphRefused, "KSampler (12): its links form a cycle"),
        (refusal("of_the_future", details="explained"), GraphRefused, "KSampler (12): Some message: explained"),
    ],
)
def test_node_errors_are_explained(failure: ComfyError, kind: type[ComfyError], text: str) -> None:
    assert (type(failure), failure.detail) == (kind, text)
    assert failure.problems == (text,)
    assert failure.node_id == "12"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            {
                "type": "invalid_prompt",
                "message": "Cannot execute because node Foo does not exist.",
                "details": "Node ID '#7'",
            },
            NotInstalled,
            "Foo (7): this node is not installed on the server",
        ),
        (
            {"type": "missing_node_type", "extra_info": {"node_id": "7", "class_type": "Foo", "node_title": "My foo"}},
            NotInstalled,
            "Foo (7): this node is not installed on the server",
        ),
        (
            {"type": "missing_node_type", "extra_info": {"node_id": "7", "class_type": None}},
            GraphRefused,
            "Node 7 has no class_type.",
        ),
        (
            {"type": "prompt_no_outputs", "message": "Prompt has no outputs"},
            GraphRefused,
            "The graph has no output node: add one that saves or previews something.",
        ),
        (
            {"type": "prompt_outputs_failed_validation", "details": ""},
            GraphRefused,
            "The server refused every output of the graph; its links may form a cycle.",
        ),
        (
            {"type": "invalid_prompt_id", "message": "prompt_id must be a UUID"},
            GraphRefused,
            "prompt_id must be a UUID",
        ),
        (None, GraphRefused, "The server refused the graph without giving a reason."),
        ("plain words", GraphRefused, "plain words"),
    ],
)
def test_general_errors_are_explained(error: Any, kind: type[ComfyError], text: str) -> None:
    failure = explain_refusal({"error": error, "node_errors": {}})
    assert (type(failure), failure.detail) == (kind, text)


def test_graph_error_outweighs_a_missing_requirement_of_the_server() -> None:
    model = {"type": "value_not_in_list", "extra_info": {"input_name": "ckpt_name", "received_value": "x.ckpt"}}
    missing = {"type": "required_input_missing", "extra_info": {"input_name": "samples"}}
    failure = explain_refusal(
        {"node_errors": {"1": {"class_type": "A", "errors": [model]}, "2": {"class_type": "B", "errors": [missing]}}}
    )
    assert type(failure) is GraphRefused
    assert failure.fault is Fault.JOB
    assert len(failure.problems) == 2
    assert failure.node_id == "2"


def failed(exception_type: str, message: str) -> ComfyError:
    return explain_execution_error(
        {
            "node_id": "5",
            "node_type": "KSampler",
            "exception_type": exception_type,
            "exception_message": message,
            "traceback": TRACEBACK,
        }
    )


@pytest.mark.parametrize(
    ("exception_type", "message", "kind", "fault"),
    [
        ("torch.OutOfMemoryError", "Allocation on device 0 would exceed", OutOfMemory, Fault.WORKER),
        ("torch.cuda.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", OutOfMemory, Fault.WORKER),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried", OutOfMemory, Fault.WORKER),
        ("OOMError", "", OutOfMemory, Fault.WORKER),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", DeviceFault, Fault.WORKER),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", DeviceFault, Fault.WORKER),
        ("InsufficientFundsError", "No credits left", PaymentRequired, Fault.JOB),
        ("ModuleNotFoundError", "No module named 'sageattention'", NodeFailed, Fault.WORKER),
        ("OSError", "[Errno 28] No space left on device", NodeFailed, Fault.WORKER),
        ("Exception", "Error while deserializing header: HeaderTooLarge", ModelUnreadable, Fault.WORKER),
        ("RuntimeError", "ERROR: Could not detect the type of this model.", ModelUnreadable, Fault.WORKER),
        ("RuntimeError", "ERROR: Could not detect model type of: /m/a.pt", ModelUnreadable, Fault.WORKER),
        ("FileNotFoundError", "Model in folder 'loras' with filename 'a.pt' not found.", ModelUnreadable, Fault.WORKER),
        ("PIL.UnidentifiedImageError", "cannot identify image file '/srv/in/a.png'", NodeFailed, Fault.JOB),
        ("ValueError", "shapes cannot be multiplied", NodeFailed, Fault.JOB),
        ("AttributeError", "'NoneType' object has no attribute 'shape'", NodeFailed, Fault.JOB),
    ],
)
def test_errors_of_nodes_have_a_fault(exception_type: str, message: str, kind: type[ComfyError], fault: Fault) -> None:
    failure = failed(exception_type, message)
    assert (type(failure), failure.fault) == (kind, fault)
    assert failure.detail.startswith("KSampler (5): ")


def test_server_paths_are_shown_only_to_operators() -> None:
    failure = failed("ValueError", "cannot open /home/gpu/ComfyUI/models/x.bin")
    assert failure.detail == "KSampler (5): cannot open x.bin"
    assert failure.raw is not None
    assert "/home/gpu/ComfyUI/execution.py" in failure.raw


@pytest.mark.parametrize(
    ("exception_type", "message", "text"),
    [
        ("PIL.UnidentifiedImageError", "cannot identify", "the file is not an image that can be read"),
        ("av.error.InvalidDataError", "Invalid data found", "the file is not a video that can be read"),
        (
            "av.error.ExternalError",
            "[Errno 542398533] Generic error in an external library: 'avcodec_open2(libx264)'",
            "H.264 needs an even width and height: scale the frames first",
        ),
        ("ValueError", "", "ValueError"),
    ],
)
def test_common_errors_have_plain_messages(exception_type: str, message: str, text: str) -> None:
    assert failed(exception_type, message).detail == f"KSampler (5): {text}"
