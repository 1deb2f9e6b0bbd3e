"""How failures of nodes are named on the wire."""


class Interrupted(Exception):
    """The prompt was interrupted."""


class StagedError(Exception):
    """A failure that somebody asked for: it takes any type's name, such as one of a library that is not here."""

    def __init__(self, *, exception_type: str, message: str) -> None:
        super().__init__(message)
        self.exception_type = exception_type


def out_of_memory() -> StagedError:
    """As ComfyUI tells of a GPU without memory left."""
    message = (
        "Allocation on device \nThis error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked "
        "before you might have accidentally set the batch_size to a large number."
    )
    return StagedError(exception_type="torch.OutOfMemoryError", message=message)


# clients must not show such paths to their users; a staged failure has them, so that they can be tested for it
STAGED_TRACEBACK = (
    '  File "/comfyui/execution.py", line 518, in execute\n',
    '  File "/comfyui/execution.py", line 291, in process_inputs\n',
    '  File "/comfyui/nodes.py", line 1586, in run\n',
)


def type_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
