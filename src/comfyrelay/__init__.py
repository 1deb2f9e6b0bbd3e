"""ComfyRelay: one queue for all your ComfyUI GPUs."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Read the version when it is first used: `importlib.metadata` takes longer to import than the command line."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415 - see above

    globals()[name] = found = version("comfyrelay")
    return found
