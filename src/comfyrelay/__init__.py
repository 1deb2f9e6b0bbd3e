"""ComfyRelay: one queue for all your ComfyUI GPUs."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Read the version on first use: importing `importlib.metadata` takes longer than importing the command line."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415 - see above

    globals()[name] = found = version("comfyrelay")
    return found
