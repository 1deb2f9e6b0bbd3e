"""The settings that a running desk uses. Some of them change while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from comfyrelay.desk.addresses import public_hosts
from comfyrelay.desk.password import Password
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.protocol.desk import NotificationEvent
from comfyrelay.settings import Settings


@dataclass(kw_only=True)
class LiveSettings:
    settings: Settings
    desk: DeskSettings
    # The configuration file, which may not exist yet.
    file: Path
    # Names of settings from the command line.
    options: frozenset[str] = frozenset()
    # Names of settings that this desk applies only at its next start, although such changes normally apply at once.
    fixed: frozenset[str] = frozenset()
    # The user's umask, if the process has a different one.
    umask: int | None = None
    # Called after a change.
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._password = Password(self.settings.data_dir)

    @property
    def input_folder(self) -> Path:
        return (self.desk.input_folder or self.settings.data_dir / "inputs").expanduser().absolute()

    @property
    def output_folder(self) -> Path:
        return (self.desk.output_folder or self.settings.data_dir / "outputs").expanduser().absolute()

    @property
    def output_umask(self) -> int | None:
        return self.umask_of(self.output_folder)

    def umask_of(self, folder: Path) -> int | None:
        """Return the umask for files in this folder. The data folder keeps the process's umask, which is private."""
        return None if folder.is_relative_to(self.settings.data_dir) else self.umask

    @property
    def notify_on(self) -> list[NotificationEvent]:
        return [NotificationEvent(event) for event in self.desk.notify_on]

    @property
    def password(self) -> Password | None:
        """The password for other machines, if they can reach the desk."""
        return self._password if public_hosts(self.settings, self.desk.allowed_hosts) else None

    def change(self, *, settings: Settings, desk: DeskSettings) -> None:
        self.settings, self.desk = settings, desk
        for listener in self.listeners:
            listener()
