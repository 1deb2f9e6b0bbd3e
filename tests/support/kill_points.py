"""Kill a process of the tests before, inside or after a function with side effects outside the databases.

The fork server installs the kill point that `VARIABLE` names, so the product has no hooks for it.
"""

import builtins
import functools
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal

When = Literal["before", "inside", "after"]

# The environment variable that passes the kill point to a child, as JSON.
VARIABLE = "TESTS_KILL_POINT"
PACKAGE = "comfyrelay"
# `os` functions that change a folder; `pathlib` and `shutil` also call them.
_PRIMITIVES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "symlink", "unlink")
_WRITES = frozenset("wxa+")
_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


@dataclass(frozen=True, kw_only=True)
class KillPoint:
    """A call of a function: `module:qualified_name`, without the package.

    `inside` means after the first change on disk during the call.
    """

    function: str
    when: When
    call: int = 1

    def __str__(self) -> str:
        number = "" if self.call == 1 else f"-{self.call}"
        return f"{self.when}-{self.function.replace(':', '.')}{number}"

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


def install(text: str) -> None:
    """Wrap the function of a kill point in every module that has it."""
    point = KillPoint(**json.loads(text))
    owner, name, original = find_function(point.function)
    wrapped = _wrap(original, point)
    is_of_class = isinstance(inspect.getattr_static(owner, name), classmethod)
    setattr(owner, name, classmethod(wrapped) if is_of_class else wrapped)
    # Other modules import the function by name.
    for module in [module for key, module in sys.modules.items() if key.startswith(PACKAGE)]:
        for attribute, value in list(vars(module).items()):
            if value is original:
                setattr(module, attribute, wrapped)
    if point.when == "inside":
        _watch_disk()


def find_function(function: str) -> tuple[Any, str, Callable[..., Any]]:
    """Find a function by `module:qualified_name`; return its module or class, its name and the function."""
    module_name, _, qualified = function.partition(":")
    owner: Any = import_module(f"{PACKAGE}.{module_name}")
    *path, name = qualified.split(".")
    for part in path:
        owner = getattr(owner, part)
    found = inspect.getattr_static(owner, name)
    if isinstance(found, classmethod):
        found = found.__func__
    assert inspect.isfunction(found), f"{function} is not a plain function"
    return owner, name, found


def _wrap(original: Callable[..., Any], point: KillPoint) -> Callable[..., Any]:
    calls = 0

    def is_due() -> bool:
        nonlocal calls
        calls += 1
        return calls == point.call

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def run_async(*arguments: Any, **options: Any) -> Any:
            if not is_due():
                return await original(*arguments, **options)
            _enter(point)
            result = await original(*arguments, **options)
            _die()
            return result

        return run_async

    @functools.wraps(original)
    def run(*arguments: Any, **options: Any) -> Any:
        if not is_due():
            return original(*arguments, **options)
        _enter(point)
        result = original(*arguments, **options)
        _die()
        return result

    return run


def _enter(point: KillPoint) -> None:
    if point.when == "before":
        _die()
    if point.when == "inside":
        _is_inside.set(True)


def _watch_disk() -> None:
    for name in _PRIMITIVES:
        setattr(os, name, _dying_after(getattr(os, name)))
    real_open = builtins.open

    def open_(*arguments: Any, **options: Any) -> Any:
        opened = real_open(*arguments, **options)
        mode = options.get("mode", arguments[1] if len(arguments) > 1 else "r")
        if _is_inside.get() and not _WRITES.isdisjoint(mode):
            _die()
        return opened

    builtins.open = open_


def _dying_after(primitive: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(primitive)
    def change(*arguments: Any, **options: Any) -> Any:
        result = primitive(*arguments, **options)
        if _is_inside.get():
            _die()
        return result

    return change


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
