"""Machines that are processes on this host: each a worker with its own ComfyUI or simulator.

Each order has a folder named by its key that holds its whole state:

order.json   its identity and command; written once, so a repeated order finds it
lock         held by the machine's process (`local_machine`) while it lives
begun.json   that process; a key starts once
running      ComfyUI answers
ended        it was asked to stop
*.log        its output, kept for a week
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
    RefusalKind,
)
from comfyrelay.autoscaling.providers.programs import folder_name, plain_environment, program
from comfyrelay.clock import utc_now
from comfyrelay.domain.autoscaling.learning import LOCAL_BOOT_SECONDS
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.errors import ConfigurationError, ProviderError
from comfyrelay.extras import require
from comfyrelay.system import files
from comfyrelay.system.atomic import write_new
from comfyrelay.system.commands import detached
from comfyrelay.system.folder_lock import FolderLock

STAND_IN = "simulator"
# A started process takes its lock within this time, even on a busy host.
START_SECONDS = 120.0
# Another server's launch in the same fleet is over by then.
TURN_SECONDS = 10.0
KEPT_DAYS = 7
MACHINE = (sys.executable, "-m", "comfyrelay.autoscaling.providers.local_machine")
WORKER = (sys.executable, "-m", "comfyrelay", "worker")
SIMULATOR = (sys.executable, "-m", "comfyrelay", "simulator", "--port", "{port}", "--folder", "{folder}")

# Configuring fleets must not allow running arbitrary code here: no variables that load or start something, or move a
# machine's folder.
_VARIABLE = re.compile(r"(COMFYRELAY_WORKER_[A-Z_]+|HEARTBEAT_INTERVAL_SECONDS|[A-Z]+_VISIBLE_DEVICES)")
_NOT_TO_SET = ("COMFYRELAY_WORKER_COMFYUI_RESTART_COMMAND", "COMFYRELAY_WORKER_DATA_DIR")

T = TypeVar("T")


class LocalOptions(BaseModel):
    """`machines.options` of a fleet with this provider."""

    model_config = ConfigDict(extra="forbid")

    # the simulator, the URL of a running ComfyUI, or a program in the programs folder
    comfyui: str = STAND_IN
    # for both processes; {slot} is the lowest number not used by another machine of the fleet
    environment: dict[str, str] = Field(default_factory=dict)
    # time for a running job to finish on shutdown
    grace_seconds: Annotated[float, Field(ge=0)] = 120.0
    # time for ComfyUI to answer
    answer_seconds: Annotated[float, Field(gt=0)] = 600.0
    # estimated boot time of the first machine, for the autoscaling loop
    boot_seconds: Annotated[float, Field(gt=0)] = LOCAL_BOOT_SECONDS

    @field_validator("environment")
    @classmethod
    def _harmless(cls, given: dict[str, str]) -> dict[str, str]:
        for name in given:
            if not _VARIABLE.fullmatch(name) or name in _NOT_TO_SET:
                raise ValueError(
                    f"{name} cannot be set here, but settings of the worker (COMFYRELAY_WORKER_…) and …_VISIBLE_DEVICES"
                )
        return given


class LocalProvider:
    """`folder` holds the machines' folders; `api_url` and `secrets` (by stage) are for their workers; `programs`
    holds the programs that a fleet may name as ComfyUI."""

    can_launch = True

    def __init__(
        self,
        *,
        folder: Path,
        api_url: str,
        secrets: Mapping[str, Sequence[str]],
        programs: Path | None = None,
        worker: Sequence[str] = WORKER,
        simulator: Sequence[str] = SIMULATOR,
    ) -> None:
        detached.check_system()
        require("media")
        self._folder = folder
        self._api_url = api_url
        self._secrets = secrets
        self._programs = programs
        self._worker = worker
        self._simulator = simulator
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def observe(self, fleet: ProviderFleet) -> Sequence[ProviderMachine]:
        return await self._aside(lambda: self._observe(fleet))

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:  # noqa: ARG002
        return await self._aside(lambda: self._launch(fleet, orders))

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        def end() -> None:
            for each in self._there(fleet):
                if each.id in ids:
                    each.end()

        await self._aside(end)

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        return fleet.spec.instance_types

    async def close(self) -> None:
        """Machines keep running: the next process finds them."""

    def _observe(self, fleet: ProviderFleet) -> list[ProviderMachine]:
        there = self._there(fleet)
        for machine in there:
            # its owner may have died before starting it, and an observed machine is not ordered again
            if machine.is_waiting_for_process and machine.id not in self._children:
                # impossible without the secret of its fleet; the order is dropped after a while
                with suppress(ConfigurationError):
                    self._start(fleet, machine)
        return [each.observed() for each in there]

    def _launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder]) -> LaunchResult:
        try:
            template = self._template(fleet)
        except ConfigurationError as error:
            return LaunchResult(refused=[LaunchRefused(kind=RefusalKind.SETUP, text=error.detail)])
        folder = self._folder_of(fleet)
        launched: list[ProviderMachine] = []
        refused: list[LaunchRefused] = []

        def refuse(order: MachineOrder, kind: RefusalKind, text: str) -> None:
            refused.append(LaunchRefused(kind=kind, text=text, instance_type=order.instance_type))

        with _turn(folder):
            _remove_old(folder)
            for order in orders:
                machine = _LocalMachine(folder / folder_name(order.key))
                if not machine.is_known:
                    there = self._there(fleet)
                    if len(there) >= fleet.max_machines:
                        most = f"The fleet {fleet.slug} may have no more than {fleet.max_machines} machines."
                        refuse(order, RefusalKind.QUOTA, most)
                        continue
                    machine.order(fleet, order, template, slot=_free_slot(there))
                if machine.is_waiting_for_process:
                    self._start(fleet, machine)
                if machine.is_there:
                    launched.append(machine.observed())
                else:
                    # a new order uses another key
                    refuse(order, RefusalKind.THROTTLED, f"The machine {machine.id} has been there, and is gone.")
        return LaunchResult(launched=launched, refused=refused)

    def _start(self, fleet: ProviderFleet, machine: "_LocalMachine") -> None:
        """Start its process. A duplicate does no harm: it fails to get the lock, or finds the key started."""
        order = machine.ordered
        slots = {name: str(value).replace("{slot}", str(order["slot"])) for name, value in order["environment"].items()}
        environment = {
            **plain_environment(),
            "API_BASE_URL": self._api_url,
            "FLEET_SECRET": self._secret(fleet),
            "FLEET_SLUG": fleet.slug,
            "FLEET_STAGE": fleet.stage,
            "WORKER_ID": machine.id,
            "MAX_CONCURRENCY": str(fleet.spec.slots),
            "COMFYRELAY_WORKER_DATA_DIR": str(machine.folder / "worker"),
            "COMFYRELAY_WORKER_METADATA_URL": "off",
            **({"COMFYRELAY_WORKER_INSTANCE_TYPE": order["instance_type"]} if order["instance_type"] else {}),
            **slots,
        }
        argv = (*MACHINE, str(machine.folder))
        log = machine.folder / "machine.log"
        self._children[machine.id] = detached.start(argv, folder=machine.folder, environment=environment, log=log)

    def _template(self, fleet: ProviderFleet) -> dict[str, Any]:
        """Return what the fleet's machines run. Raises `ConfigurationError` if they could not."""
        try:
            options = LocalOptions.model_validate(dict(fleet.spec.options))
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}"
                for each in error.errors()
            ]
            raise ConfigurationError(
                f"The options of the fleet {fleet.slug} are wrong: {'; '.join(problems)}."
            ) from None
        self._secret(fleet)
        url, argv = None, None
        if options.comfyui == STAND_IN:
            require("simulator")
            argv = list(self._simulator)
        elif options.comfyui.startswith(("http://", "https://")):
            url = options.comfyui
        else:
            argv = [str(program(self._programs, options.comfyui)), "{port}", "{folder}"]
        return {
            "comfyui": argv,
            "comfyui_url": url,
            "worker": list(self._worker),
            "environment": options.environment,
            "grace_seconds": options.grace_seconds,
            "answer_seconds": options.answer_seconds,
        }

    def _secret(self, fleet: ProviderFleet) -> str:
        found = self._secrets.get(fleet.stage, ())
        if not found:
            raise ConfigurationError(
                f"There is no fleet secret for {fleet.stage}, with which workers register: add one to "
                "COMFYRELAY_FLEET_SECRETS."
            )
        return found[0]

    def _there(self, fleet: ProviderFleet) -> list["_LocalMachine"]:
        folder = self._folder_of(fleet)
        # a file in its place does not mean an empty fleet
        found = sorted(each for each in folder.iterdir() if each.is_dir()) if folder.exists() else []
        return [machine for machine in map(_LocalMachine, found) if machine.is_there]

    def _folder_of(self, fleet: ProviderFleet) -> Path:
        # each stage has a folder; a missing one is empty only if its parent is readable
        if self._folder.exists():
            next(iter(self._folder.iterdir()), None)
        return self._folder / folder_name(fleet.stage) / folder_name(fleet.slug)

    async def _aside(self, work: Callable[[], T]) -> T:
        """In a thread: disks and processes may be slow."""
        self._children = {name: each for name, each in self._children.items() if each.poll() is None}
        try:
            return await asyncio.to_thread(work)
        except (OSError, ValueError, KeyError) as error:
            raise ProviderError(f"The machines in {self._folder} cannot be read: {error}.") from error


class _LocalMachine:
    """One folder and the process that holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._order: dict[str, Any] | None = None

    @property
    def is_known(self) -> bool:
        return (self.folder / "order.json").exists()

    @property
    def ordered(self) -> dict[str, Any]:
        if self._order is None:
            self._order = json.loads((self.folder / "order.json").read_text("utf-8"))
        return self._order

    @property
    def id(self) -> str:
        return str(self.ordered["id"])

    @property
    def launched_at(self) -> datetime:
        return datetime.fromisoformat(self.ordered["launched_at"])

    @property
    def is_waiting_for_process(self) -> bool:
        """Ordered but not started: its starter may have died."""
        return not self._has("ended") and not self._has("begun.json")

    @property
    def is_there(self) -> bool:
        if not self.is_known:
            return False
        if self.is_waiting_for_process:
            return utc_now() - self.launched_at < timedelta(seconds=START_SECONDS) or self._is_held
        process = self._process
        return process is not None and self._is_held and detached.is_running(**process)

    def observed(self) -> ProviderMachine:
        state = ProviderMachineState.RUNNING if self._has("running") else ProviderMachineState.PENDING
        return ProviderMachine(
            id=self.id,
            worker_id=self.id,
            key=self.ordered["key"],
            state=ProviderMachineState.ENDING if self._has("ended") else state,
            instance_type=self.ordered["instance_type"],
            price_per_hour=self.ordered["price_per_hour"],
            launched_at=self.launched_at,
        )

    def order(self, fleet: ProviderFleet, order: MachineOrder, template: Mapping[str, Any], *, slot: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        prices = {instance_type_.name: instance_type_.price_per_hour for instance_type_ in fleet.spec.instance_types}
        self._order = {
            "id": f"local-{fleet.stage}-{fleet.slug}-{self.folder.name}",
            "key": order.key,
            "instance_type": order.instance_type,
            "price_per_hour": prices.get(order.instance_type or ""),
            "slot": slot,
            "launched_at": utc_now().isoformat(),
            **template,
        }
        write_new(self.folder / "order.json", json.dumps(self._order, indent=2).encode(), mode=0o600)

    def end(self) -> None:
        """Recorded first: a process that is about to start checks it, and a started one is signalled."""
        (self.folder / "ended").touch()
        process = self._process
        if process is not None and self._is_held:
            detached.send_sigterm(**process)

    @property
    def _is_held(self) -> bool:
        """Held by its process, or briefly by another reader."""
        return FolderLock(self.folder).holder() is not None

    @property
    def _process(self) -> dict[str, Any] | None:
        """Its process, which may have exited."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "begun.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return found

    def _has(self, name: str) -> bool:
        return (self.folder / name).exists()


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One launch per fleet at a time, so that counts stay correct."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FolderLock(folder)
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            lock.acquire(advice="It is launching machines.")
        except ConfigurationError as error:
            if time.monotonic() > deadline:
                raise ProviderError(error.detail) from None
        else:
            break
    try:
        yield
    finally:
        lock.release()


def _free_slot(there: Sequence[_LocalMachine]) -> int:
    taken = {each.ordered["slot"] for each in there}
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)


def _remove_old(folder: Path) -> None:
    before = utc_now() - timedelta(days=KEPT_DAYS)
    for path in folder.iterdir():
        machine = _LocalMachine(path)
        # one that cannot be read, or removed, is no reason to launch nothing
        with suppress(OSError, ValueError, KeyError):
            if path.is_dir() and machine.is_known and machine.launched_at < before and not machine.is_there:
                files.remove_tree(path)
