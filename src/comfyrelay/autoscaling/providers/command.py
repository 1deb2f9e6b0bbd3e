"""Machines made by an operator's script: `SCRIPT observe|launch|end|prices` with JSON on standard input and output.

docs/howto/fleet-command.md documents the interface.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
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
    Observed,
    ObservedState,
    ProviderFleet,
    RefusalKind,
)
from comfyrelay.autoscaling.providers.programs import folder_name, plain_environment, program
from comfyrelay.domain.autoscaling.spec import MAX_MONEY, InstanceType
from comfyrelay.domain.autoscaling.spec_json import machines_to_json
from comfyrelay.errors import ConfigurationError, ProviderError
from comfyrelay.system.atomic import write
from comfyrelay.system.commands import detached
from comfyrelay.system.folder_lock import FolderLock

log = structlog.get_logger(__name__)

# EX_TEMPFAIL of sysexits.h: try again later.
TRY_LATER = 75
TIMEOUT_SECONDS = 60.0
MAX_BYTES = 4 * 1024**2
_LAST_WORDS = 300
# Another server's launch in the same fleet is over by then, or has timed out.
_PAUSE_SECONDS = 0.05


def _or_nothing(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Ignore invalid details: they must not make a machine look missing."""
    try:
        return check(value)
    except ValidationError as error:
        log.warning("command.value_ignored", why=error.errors()[0]["msg"], value=repr(value)[:80])
        return None


# databases do not store NUL
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
NameIfAny = Annotated[Name | None, WrapValidator(_or_nothing)]
MoneyIfAny = Annotated[
    Annotated[float, Field(ge=0, le=MAX_MONEY, allow_inf_nan=False)] | None, WrapValidator(_or_nothing)
]


class _ReportedMachine(BaseModel):
    id: Name
    state: ObservedState = ObservedState.RUNNING
    key: NameIfAny = None
    worker_id: NameIfAny = None
    instance_type: NameIfAny = None
    price_per_hour: MoneyIfAny = None
    launched_at: AwareDatetime | None = None

    def observed(self) -> Observed:
        at = self.launched_at
        return Observed(**{**self.model_dump(), "launched_at": at and at.astimezone(UTC)})


class _Refusal(BaseModel):
    kind: RefusalKind
    text: Name
    instance_type: NameIfAny = None


class _Price(BaseModel):
    name: Name
    price_per_hour: MoneyIfAny


class _Machines(BaseModel):
    machines: list[_ReportedMachine]


class _Launched(BaseModel):
    machines: list[_ReportedMachine] = Field(default_factory=list)
    refused: list[_Refusal] = Field(default_factory=list)


class _Prices(BaseModel):
    prices: list[_Price] = Field(default_factory=list)


class _Nothing(BaseModel):
    pass


A = TypeVar("A", bound=BaseModel)


@dataclass
class _Failed(Exception):
    """The script reports that it did nothing."""

    kind: RefusalKind
    text: str


class CommandProvider:
    """`folder` holds secrets and locks, `programs` the scripts.

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
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._folder = folder
        self._api_url = api_url
        self._secrets = secrets
        self._programs = programs
        self._timeout_seconds = timeout_seconds

    async def observe(self, fleet: ProviderFleet) -> Sequence[Observed]:
        return await self._observe_or_raise(fleet)

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        """Existing keys are not ordered again.

        An unknown result, such as after a timeout, is raised: repeating the order finds out.
        """
        async with self._turn(fleet):
            try:
                there = await self._observe(fleet)
                wanted = [order for order in orders if order.key not in {machine.key for machine in there}]
                room = max(0, fleet.max_machines - len(there))
                said = _Launched()
                if wanted[:room]:
                    asked = [{"key": each.key, "instance_type": each.instance_type} for each in wanted[:room]]
                    said = await self._ask(fleet, "launch", _Launched, orders=asked, total=total)
            except _Failed as failed:
                return LaunchResult(refused=[LaunchRefused(kind=failed.kind, text=failed.text)])
        known = [machine for machine in there if machine.key in {order.key for order in orders}]
        refused = [LaunchRefused(**each.model_dump()) for each in said.refused]
        if wanted[room:]:
            text = f"The fleet {fleet.slug} may have no more than {fleet.max_machines} machines."
            refused.append(LaunchRefused(kind=RefusalKind.QUOTA, text=text))
        return LaunchResult(launched=[*known, *(each.observed() for each in said.machines)], refused=refused)

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        # ids of other fleets or unknown machines are not passed to the script
        known = {each.id for each in await self._observe_or_raise(fleet)} if ids else set()
        if ended := [id_ for id_ in ids if id_ in known]:
            try:
                await self._ask(fleet, "end", _Nothing, ids=ended)
            except _Failed as failed:
                raise ProviderError(failed.text) from None

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        try:
            said = await self._ask(fleet, "prices", _Prices)
        except _Failed as failed:
            raise ProviderError(failed.text) from None
        now = {price.name: price.price_per_hour for price in said.prices if price.price_per_hour is not None}
        return [
            replace(instance_type_, price_per_hour=now.get(instance_type_.name, instance_type_.price_per_hour))
            for instance_type_ in fleet.spec.instance_types
        ]

    async def close(self) -> None: ...

    async def _observe_or_raise(self, fleet: ProviderFleet) -> list[Observed]:
        try:
            return await self._observe(fleet)
        except _Failed as failed:
            raise ProviderError(failed.text) from None

    async def _observe(self, fleet: ProviderFleet) -> list[Observed]:
        found = [machine.observed() for machine in (await self._ask(fleet, "observe", _Machines)).machines]
        if len({each.id for each in found}) < len(found):
            raise ProviderError(f"The script of the fleet {fleet.slug} named a machine twice in its answer to observe.")
        return found

    async def _ask(self, fleet: ProviderFleet, word: str, answer: type[A], **more: Any) -> A:
        """Run the script and parse its answer.

        Raises `_Failed` if it did nothing, `ProviderError` if the result is unknown.
        """
        name = str(fleet.spec.options.get("command", ""))
        try:
            if not name:
                raise ConfigurationError(
                    f"The fleet {fleet.slug} names no script: set `command` in the options of its machines."
                )
            path = program(self._programs, name)
            environment = self._environment(fleet)
        except ConfigurationError as error:
            raise _Failed(RefusalKind.SETUP, error.detail) from None
        asked = {
            "fleet": fleet.slug,
            "stage": fleet.stage,
            "max_machines": fleet.max_machines,
            "machines": machines_to_json(fleet.spec),
            **more,
        }
        with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
            stdin.write(json.dumps(asked).encode())
            stdin.seek(0)
            try:
                code = await detached.run(
                    [str(path), word],
                    folder=path.parent,
                    environment=environment,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    timeout_seconds=self._timeout_seconds,
                )
            except TimeoutError:
                raise ProviderError(
                    f"{name} {word} took longer than {self._timeout_seconds:g} s, and was ended."
                ) from None
            except OSError as error:
                raise _Failed(RefusalKind.SETUP, f"{path} cannot be started: {error.strerror}.") from None
            if code:
                raise _failure(f"{name} {word}", code, _last_words(stderr))
            return _read(f"{name} {word}", answer, stdout)

    def _environment(self, fleet: ProviderFleet) -> Mapping[str, str]:
        secrets = self._secrets.get(fleet.stage, ())
        if not secrets:
            raise ConfigurationError(
                f"There is no fleet secret for {fleet.stage}, with which workers register: add one to "
                "COMFYRELAY_FLEET_SECRETS."
            )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # as a file, because process listings may show the environment
        path = self._folder / f"secret-{folder_name(fleet.stage)}"
        write(path, secrets[0].encode(), mode=0o600)
        return {
            **plain_environment(),
            "API_BASE_URL": self._api_url,
            "FLEET_SLUG": fleet.slug,
            "FLEET_STAGE": fleet.stage,
            "FLEET_SECRET_FILE": str(path),
        }

    @asynccontextmanager
    async def _turn(self, fleet: ProviderFleet) -> AsyncIterator[None]:
        """One launch per fleet at a time on this host, from observing to launching."""
        lock = FolderLock(self._folder / folder_name(fleet.stage) / folder_name(fleet.slug))
        try:
            async with asyncio.timeout(2 * self._timeout_seconds + 1):
                while not await asyncio.to_thread(_is_taken, lock):  # noqa: ASYNC110  (a lock has no event)
                    await asyncio.sleep(_PAUSE_SECONDS)
        except TimeoutError:
            raise ProviderError(f"Another process is launching machines for the fleet {fleet.slug}.") from None
        try:
            yield
        finally:
            lock.release()


def _is_taken(lock: FolderLock) -> bool:
    try:
        lock.acquire(advice="")
    except ConfigurationError:
        return False
    return True


def _failure(what: str, code: int, last_words: str) -> _Failed:
    said = f": {last_words}" if last_words else "."
    if code == TRY_LATER:
        return _Failed(RefusalKind.THROTTLED, f"{what} asks to be tried again later{said}")
    return _Failed(RefusalKind.SETUP, f"{what} ended with exit code {code}{said}")


def _last_words(stderr: IO[bytes]) -> str:
    """The last non-empty line, as a sentence."""
    stderr.seek(0, 2)
    stderr.seek(max(0, stderr.tell() - 4096))
    lines = [line.strip() for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1][-_LAST_WORDS:].rstrip('.')}." if lines else ""


def _read(what: str, answer: type[A], stdout: IO[bytes]) -> A:
    stdout.seek(0)
    data = stdout.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ProviderError(f"{what} printed more than {MAX_BYTES} bytes.")
    try:
        # an empty answer is allowed
        return answer.model_validate_json(data.strip() or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        begin = data[:80].decode(errors="replace")
        raise ProviderError(
            f"{what} must print JSON as docs/howto/fleet-command.md has it. Wrong is {where or 'all of it'}: "
            f"{first['msg']}. It printed {begin!r}."
        ) from None
