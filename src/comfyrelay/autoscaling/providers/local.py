"""Machines that are processes on this host: each a worker with its own ComfyUI or simulator.

Each order has a folder named by its key that holds its whole state:

order.json   its identity and command; written once, so a repeated order finds it
lock         held by the machine's process (`local_machine`) while it runs
begun.json   that process; each key is started only once
running      ComfyUI answers
ended        the machine was terminated
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
from comfyrelay.autoscaling.providers.programs import fleet_secret, folder_name, program
from comfyrelay.clock import utc_now
from comfyrelay.domain.autoscaling.learning import LOCAL_BOOT_SECONDS
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.errors import ConfigurationError, ProviderError
from comfyrelay.extras import require
from comfyrelay.system import files
from comfyrelay.system.atomic import write_new
from comfyrelay.system.commands import detached
from comfyrelay.system.commands.environment import inherited_environment
from comfyrelay.system.folder_lock import FolderLock

# Value of the option `comfyui` that runs the simulator.
USE_SIMULATOR = "simulator"
# A started process takes its lock within this time, even on a busy host.
START_SECONDS = 120.0
# By then, a launch by another server in the same fleet has ended.
LOCK_TIMEOUT_SECONDS = 10.0
LOG_RETENTION = timedelta(days=7)
MACHINE = (sys.executable, "-m", "comfyrelay.autoscaling.providers.local_machine")
WORKER = (sys.executable, "-m", "comfyrelay", "worker")
SIMULATOR = (sys.executable, "-m", "comfyrelay", "simulator", "--port", "{port}", "--folder", "{folder}")

# Configuring fleets must not allow running arbitrary code here. So a fleet cannot set variables that load or start
# programs, name folders or files, or send outputs or the secret of the stage to another address.
WORKER_SETTINGS = frozenset(
    (
        *("ASSET_CACHE_BYTES", "CAPABILITIES", "CAPACITY_TYPE", "COMFY_CLOUD_CONCURRENCY", "COMFY_PROVIDERS"),
        *("COMFYUI_GPUS", "DISPLAY_NAME", "GRAPH_ALLOWED_NODES", "GRAPH_DENIED_NODES", "GRAPH_POLICY"),
        *("HEARTBEAT_INTERVAL_SECONDS", "INSTANCE_TYPE", "INTERRUPTED_JOBS", "IS_ONLY_WORKER", "NODE_TIMEOUT_SECONDS"),
        *("METADATA_INTERVAL_SECONDS", "METADATA_URL"),
        *("POLL_WAIT_SECONDS", "PREFETCH", "PREVIEW_METHOD", "REPORT_TIMEOUT_SECONDS", "RUN_TIMEOUT_SECONDS"),
        *("SHUTDOWN_SECONDS", "TERMINATION_SECONDS", "TIDY_COMFYUI", "UPLOAD_BEHIND", "WORKFLOW_SLUGS"),
    )
)
_WORKER_PREFIX = "COMFYRELAY_WORKER_"
_ALLOWED_VARIABLE = re.compile(r"HEARTBEAT_INTERVAL_SECONDS|[A-Z]+_VISIBLE_DEVICES")

T = TypeVar("T")


class LocalOptions(BaseModel):
    """`machines.options` of a fleet with this provider."""

    model_config = ConfigDict(extra="forbid")

    # The simulator, the URL of a running ComfyUI, or a program in the programs folder.
    comfyui: str = USE_SIMULATOR
    # Variables for both processes. {slot} is the lowest number that no other machine of the fleet uses.
    environment: dict[str, str] = Field(default_factory=dict)
    # Time that a running job has to finish on shutdown.
    grace_seconds: Annotated[float, Field(ge=0)] = 120.0
    # Time that ComfyUI has to answer after its start.
    answer_seconds: Annotated[float, Field(gt=0)] = 600.0
    # Expected boot time of the first machine.
    boot_seconds: Annotated[float, Field(gt=0)] = LOCAL_BOOT_SECONDS

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in environment:
            setting = name.removeprefix(_WORKER_PREFIX)
            is_setting = name.startswith(_WORKER_PREFIX) and setting in WORKER_SETTINGS
            if not is_setting and not _ALLOWED_VARIABLE.fullmatch(name):
                raise ValueError(
                    f"{name} cannot be set here, because it could run programs or reveal secrets on the server's host. "
                    f"Set only …_VISIBLE_DEVICES and {_WORKER_PREFIX}… with one of {', '.join(sorted(WORKER_SETTINGS))}"
                )
        return environment


class LocalProvider:
    """`folder` holds the machines' folders. Their workers register at `api_url` with a secret of their stage.

    `programs` holds the programs that a fleet may name as ComfyUI. `variables` names environment variables that the
    machines get in addition to the usual ones.
    """

    can_launch = True

    def __init__(
        self,
        *,
        folder: Path,
        api_url: str,
        secrets: Mapping[str, Sequence[str]],
        programs: Path | None = None,
        variables: Sequence[str] = (),
        worker: Sequence[str] = WORKER,
        simulator: Sequence[str] = SIMULATOR,
    ) -> None:
        detached.check_system()
        require("media")
        self._folder = folder
        self._api_url = api_url
        self._secrets = secrets
        self._programs = programs
        self._variables = variables
        self._worker = worker
        self._simulator = simulator
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def observe(self, fleet: ProviderFleet) -> Sequence[ProviderMachine]:
        return await self._in_thread(lambda: self._observe(fleet))

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:  # noqa: ARG002
        return await self._in_thread(lambda: self._launch(fleet, orders))

    async def end(self, fleet: ProviderFleet, ids: Sequence[str]) -> None:
        def end() -> None:
            for machine in self._present(fleet):
                if machine.id in ids:
                    machine.end()

        await self._in_thread(end)

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        return fleet.spec.instance_types

    async def close(self) -> None:
        """Keep the machines running: the next process finds them."""

    def _observe(self, fleet: ProviderFleet) -> list[ProviderMachine]:
        present = self._present(fleet)
        for machine in present:
            # The server that ordered it may have died before starting it, and an observed machine is not ordered again.
            if machine.is_waiting_for_process and machine.id not in self._children:
                # Without the secret of its fleet, the machine cannot start, and the order is dropped after a while.
                with suppress(ConfigurationError):
                    self._start(fleet, machine)
        return [machine.observed() for machine in present]

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

        with _launch_lock(folder):
            _remove_old(folder)
            for order in orders:
                machine = _LocalMachine(folder / folder_name(order.key))
                if not machine.is_known:
                    present = self._present(fleet)
                    if len(present) >= fleet.max_machines:
                        text = f"The fleet {fleet.slug} may have at most {fleet.max_machines} machines."
                        refuse(order, RefusalKind.QUOTA, text)
                        continue
                    machine.order(fleet, order, template, slot=_free_slot(present))
                if machine.is_waiting_for_process:
                    self._start(fleet, machine)
                if machine.is_present:
                    launched.append(machine.observed())
                else:
                    # A new order gets another key.
                    refuse(order, RefusalKind.THROTTLED, f"The machine {machine.id} has already ended.")
        return LaunchResult(launched=launched, refused=refused)

    def _start(self, fleet: ProviderFleet, machine: "_LocalMachine") -> None:
        """Start the machine's process. A second process is harmless: it exits, because the key was already started."""
        order = machine.ordered
        slots = {name: str(value).replace("{slot}", str(order["slot"])) for name, value in order["environment"].items()}
        environment = {
            **inherited_environment(self._variables),
            "API_BASE_URL": self._api_url,
            "FLEET_SECRET": fleet_secret(self._secrets, fleet.stage),
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
        """Return the settings of the fleet's machines. Raises `ConfigurationError` if machines could not run."""
        try:
            options = LocalOptions.model_validate(dict(fleet.spec.options))
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, details['loc']))}: {details['msg'].removeprefix('Value error, ')}"
                for details in error.errors()
            ]
            raise ConfigurationError(
                f"The options of the fleet {fleet.slug} are invalid: {'; '.join(problems)}."
            ) from None
        fleet_secret(self._secrets, fleet.stage)
        url, argv = None, None
        if options.comfyui == USE_SIMULATOR:
            require("simulator")
            argv = list(self._simulator)
        elif options.comfyui.startswith(("http://", "https://")):
            url = options.comfyui
        else:
            argv = [str(program(self._programs, options.comfyui)), "{port}", "{folder}"]
        return {
            "comfyui": argv,
            "comfyui_url": url,
            "has_secret": options.comfyui == USE_SIMULATOR,
            "worker": list(self._worker),
            "environment": options.environment,
            "grace_seconds": options.grace_seconds,
            "answer_seconds": options.answer_seconds,
        }

    def _present(self, fleet: ProviderFleet) -> list["_LocalMachine"]:
        folder = self._folder_of(fleet)
        # If the path is a file, this raises, because the fleet is unknown, not empty.
        folders = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.exists() else []
        return [machine for machine in map(_LocalMachine, folders) if machine.is_present]

    def _folder_of(self, fleet: ProviderFleet) -> Path:
        # A missing folder means an empty fleet only if its parent is readable.
        if self._folder.exists():
            next(iter(self._folder.iterdir()), None)
        return self._folder / folder_name(fleet.stage) / folder_name(fleet.slug)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run in a thread, because disks and processes may be slow."""
        self._children = {name: child for name, child in self._children.items() if child.poll() is None}
        try:
            return await asyncio.to_thread(work)
        except (OSError, ValueError, KeyError) as error:
            raise ProviderError(f"The machines in {self._folder} cannot be read: {error}.") from error


class _LocalMachine:
    """The folder of a machine, and the process that locks it."""

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
        """Whether the machine was ordered but not started. The server that ordered it may have died."""
        return not self._has("ended") and not self._has("begun.json")

    @property
    def is_present(self) -> bool:
        if not self.is_known:
            return False
        if self.is_waiting_for_process:
            return utc_now() - self.launched_at < timedelta(seconds=START_SECONDS) or self._is_locked
        process = self._process
        return process is not None and self._is_locked and detached.is_running(**process)

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
        prices = {type_.name: type_.price_per_hour for type_ in fleet.spec.instance_types}
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
        """End the machine. Record this first, because a process that is about to start checks it. A started one gets a
        signal."""
        (self.folder / "ended").touch()
        process = self._process
        if process is not None and self._is_locked:
            detached.send_sigterm(**process)

    @property
    def _is_locked(self) -> bool:
        """Whether the lock is held by its process or, briefly, by another reader."""
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
def _launch_lock(folder: Path) -> Iterator[None]:
    """Allow one launch per fleet at a time, so that counts stay correct."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FolderLock(folder)
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
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


def _free_slot(present: Sequence[_LocalMachine]) -> int:
    taken = {machine.ordered["slot"] for machine in present}
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)


def _remove_old(folder: Path) -> None:
    before = utc_now() - LOG_RETENTION
    for path in folder.iterdir():
        machine = _LocalMachine(path)
        # A folder that cannot be read or removed must not prevent launches.
        with suppress(OSError, ValueError, KeyError):
            if path.is_dir() and machine.is_known and machine.launched_at < before and not machine.is_present:
                files.remove_tree(path)
