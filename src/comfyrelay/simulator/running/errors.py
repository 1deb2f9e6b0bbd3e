"""Node failures, and their names on the wire."""


class Interrupted(Exception):
    """The prompt was interrupted."""


class InjectedError(Exception):
    """An injected failure. The name of its type may come from a library that is not installed."""

    def __init__(self, *, exception_type: str, message: str) -> None:
        super().__init__(message)
        self.exception_type = exception_type


def out_of_memory() -> InjectedError:
    """Return ComfyUI's out-of-memory error."""
    message = (
        "Allocation on device \nThis error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked "
        "before you might have accidentally set the batch_size to a large number."
    )
    return InjectedError(exception_type="torch.OutOfMemoryError", message=message)


# Injected failures contain such paths, because clients must hide them from users.
INJECTED_TRACEBACK = (
    '  File "/comfyui/execution.py", line 518, in execute\n',
    '  File "/comfyui/execution.py", line 291, in process_inputs\n',
    '  File "/comfyui/nodes.py", line 1586, in run\n',
)


def type_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
