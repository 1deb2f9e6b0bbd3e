"""Machines managed by an operator's script: `SCRIPT observe|launch|end|prices` with JSON on standard input and output.

docs/howto/fleet-command.md documents the interface.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, TypeVar

import structlog
from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
    RefusalKind,
)
from comfyrelay.autoscaling.providers.programs import fleet_secret, folder_name, program
from comfyrelay.domain.autoscaling.spec import MAX_MONEY, InstanceType
from comfyrelay.domain.autoscaling.spec_json import machines_to_json
from comfyrelay.errors import ConfigurationError, ProviderError
from comfyrelay.system.atomic import write
from comfyrelay.system.commands import detached
from comfyrelay.system.commands.environment import inherited_environment
from comfyrelay.system.folder_lock import FolderLock

log = structlog.get_logger(__name__)

# EX_TEMPFAIL of sysexits.h: try again later.
TRY_LATER = 75
TIMEOUT_SECONDS = 60.0
MAX_BYTES = 4 * 1024**2
_MAX_ERROR_LENGTH = 300
_POLL_SECONDS = 0.05


def _or_none(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Return `None` for an invalid detail, which must not make the machine look missing."""
    try:
        return check(value)
    except ValidationError as error:
        log.warning("command.value_ignored", why=error.errors()[0]["msg"], value=repr(value)[:80])
        return None


# Databases do not store NUL.
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
OptionalName = Annotated[Name | None, WrapValidator(_or_none)]
Price = Annotated[float, Field(ge=0, le=MAX_MONEY, allow_inf_nan=False)]
OptionalPrice = Annotated[Price | None, WrapValidator(_or_none)]


class _ReportedMachine(BaseModel):
    id: Name
    state: ProviderMachineState = ProviderMachineState.RUNNING
    key: OptionalName = None
    worker_id: OptionalName = None
    instance_type: OptionalName = None
    price_per_hour: OptionalPrice = None
    launched_at: AwareDatetime | None = None

    def to_machine(self) -> ProviderMachine:
        at = self.launched_at
        return ProviderMachine(**{**self.model_dump(), "launched_at": at and at.astimezone(UTC)})


class _Refusal(BaseModel):
    kind: RefusalKind
    text: Name
    instance_type: OptionalName = None


class _Price(BaseModel):
    name: Name
    price_per_hour: OptionalPrice


class _ObserveAnswer(BaseModel):
    machines: list[_ReportedMachine]


class _LaunchAnswer(BaseModel):
    machines: list[_ReportedMachine] = Field(default_factory=list)
    refused: list[_Refusal] = Field(default_factory=list)


class _PricesAnswer(BaseModel):
    prices: list[_Price] = Field(default_factory=list)


class _EndAnswer(BaseModel):
    pass


A = TypeVar("A", bound=BaseModel)


@dataclass
class _ScriptFailed(Exception):
    """The script reports that it did nothing."""

    kind: RefusalKind
    text: str


class CommandProvider:
    """`folder` holds secrets and locks, `programs` the scripts. `variables` names further environment variables.

    A fleet names its script in `machines.options.command`; the other options belong to the script.
    """

    can_launch = True

    def __init__(
        self,
        *,
        folder: Path,
        api_url: str,
        secrets: Mapping[str, Sequence[str]],
        programs: Path | None,
        variables: Sequence[str] = (),
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._folder = folder
        self._api_url = api_url
        self._secrets = secrets
        self._programs = programs
        self._variables = variables
        self._timeout_seconds = timeout_seconds

    async def observe(self, fleet: ProviderFleet) -> Sequence[ProviderMachine]:
        with _raise_provider_error():
            return await self._observe(fleet)

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        """Order the keys that have no machine.

        If the result is unknown, such as after a timeout, raise an error. Repeating the order finds out.
        """
        async with self._lock(fleet):
            try:
                present = await self._observe(fleet)
                missing = [order for order in orders if order.key not in {machine.key for machine in present}]
                room = max(0, fleet.max_machines - len(present))
                answer = _LaunchAnswer()
                if missing[:room]:
                    new = [{"key": order.key, "instance_type": order.instance_type} for order in missing[:room]]
                    answer = await self._run(fleet, "launch", _LaunchAnswer, orders=new, total=total)
            except _ScriptFailed as failed:
                return LaunchResult(refused=[LaunchRefused(kind=failed.kind, text=failed.text)])
        known = [machine for machine in present if machine.key in {order.key for order in orders}]
        refused = [LaunchRefused(**refusal.model_dump()) for refusal in answer.refused]
        if missing[room:]:
            text = f"The fleet {fleet.slug} may have at most {fleet.max_machines} machines."
            refused.append(LaunchRefused(kind=RefusalKind.QUOTA, text=text))
        return LaunchResult(launched=[*known, *(machine.to_machine() for machine in answer.machines)], refused=refused)

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        # Ids of other fleets or unknown machines are not passed to the script.
        known = {machine.id for machine in await self.observe(fleet)} if ids else set()
        if ended := [id_ for id_ in ids if id_ in known]:
            with _raise_provider_error():
                await self._run(fleet, "end", _EndAnswer, ids=ended)

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        with _raise_provider_error():
            answer = await self._run(fleet, "prices", _PricesAnswer)
        now = {price.name: price.price_per_hour for price in answer.prices if price.price_per_hour is not None}
        return [
            replace(type_, price_per_hour=now.get(type_.name, type_.price_per_hour))
            for type_ in fleet.spec.instance_types
        ]

    async def close(self) -> None: ...

    async def _observe(self, fleet: ProviderFleet) -> list[ProviderMachine]:
        answer = await self._run(fleet, "observe", _ObserveAnswer)
        machines = [machine.to_machine() for machine in answer.machines]
        if len({machine.id for machine in machines}) < len(machines):
            raise ProviderError(
                f"The script of the fleet {fleet.slug} listed a machine twice in its answer to observe."
            )
        return machines

    async def _run(self, fleet: ProviderFleet, action: str, answer: type[A], **more: Any) -> A:
        """Run the script and parse its answer.

        Raises `_ScriptFailed` if the script did nothing, `ProviderError` if the result is unknown.
        """
        name = str(fleet.spec.options.get("command", ""))
        try:
            if not name:
                raise ConfigurationError(
                    f"The fleet {fleet.slug} has no script: set `command` in the options of its machines."
                )
            path = program(self._programs, name)
            environment = self._environment(fleet)
        except ConfigurationError as error:
            raise _ScriptFailed(RefusalKind.SETUP, error.detail) from None
        request = {
            "fleet": fleet.slug,
            "stage": fleet.stage,
            "max_machines": fleet.max_machines,
            "machines": machines_to_json(fleet.spec),
            **more,
        }
        with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
            stdin.write(json.dumps(request).encode())
            stdin.seek(0)
            try:
                code = await detached.run(
                    [str(path), action],
                    folder=path.parent,
                    environment=environment,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    timeout_seconds=self._timeout_seconds,
                )
            except TimeoutError:
                text = f"{name} {action} took longer than {self._timeout_seconds:g} s and was stopped."
                raise ProviderError(text) from None
            except OSError as error:
                raise _ScriptFailed(RefusalKind.SETUP, f"{path} cannot be started: {error.strerror}.") from None
            if code:
                raise _failure(f"{name} {action}", code, _last_line(stderr))
            return _parse(f"{name} {action}", answer, stdout)

    def _environment(self, fleet: ProviderFleet) -> Mapping[str, str]:
        secret = fleet_secret(self._secrets, fleet.stage)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The secret is in a file, because process listings may show the environment.
        path = self._folder / f"secret-{folder_name(fleet.stage)}"
        write(path, secret.encode(), mode=0o600)
        return {
            **inherited_environment(self._variables),
            "API_BASE_URL": self._api_url,
            "FLEET_SLUG": fleet.slug,
            "FLEET_STAGE": fleet.stage,
            "FLEET_SECRET_FILE": str(path),
        }

    @asynccontextmanager
    async def _lock(self, fleet: ProviderFleet) -> AsyncIterator[None]:
        """Allow one launch per fleet at a time on this host, from observing to launching."""
        lock = FolderLock(self._folder / folder_name(fleet.stage) / folder_name(fleet.slug))
        try:
            # By then, a launch by another server has ended or timed out.
            async with asyncio.timeout(2 * self._timeout_seconds + 1):
                while not await asyncio.to_thread(_try_acquire, lock):  # noqa: ASYNC110  (a lock has no event)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ProviderError(f"Another process is launching machines for the fleet {fleet.slug}.") from None
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _raise_provider_error() -> Iterator[None]:
    try:
        yield
    except _ScriptFailed as failed:
        raise ProviderError(failed.text) from None


def _try_acquire(lock: FolderLock) -> bool:
    try:
        lock.acquire(advice="")
    except ConfigurationError:
        return False
    return True


def _failure(what: str, code: int, last_line: str) -> _ScriptFailed:
    details = f": {last_line}" if last_line else "."
    if code == TRY_LATER:
        return _ScriptFailed(RefusalKind.THROTTLED, f"{what} asks to be tried again later{details}")
    return _ScriptFailed(RefusalKind.SETUP, f"{what} ended with exit code {code}{details}")


def _last_line(stderr: IO[bytes]) -> str:
    """Return the last non-empty line, as a sentence."""
    stderr.seek(0, 2)
    stderr.seek(max(0, stderr.tell() - 4096))
    lines = [line.strip() for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1][-_MAX_ERROR_LENGTH:].rstrip('.')}." if lines else ""


def _parse(what: str, answer: type[A], stdout: IO[bytes]) -> A:
    stdout.seek(0)
    data = stdout.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ProviderError(f"{what} printed more than {MAX_BYTES} bytes.")
    try:
        # An empty answer is allowed.
        return answer.model_validate_json(data.strip() or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"])) or "the answer"
        start = data[:80].decode(errors="replace")
        raise ProviderError(
            f"{what} must print JSON as described in docs/howto/fleet-command.md, but {location} is invalid: "
            f"{first['msg']}. It printed {start!r}."
        ) from None
