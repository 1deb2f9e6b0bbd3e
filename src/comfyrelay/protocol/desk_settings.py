"""The settings of a desk on its page."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.desk import LocalPath
from comfyrelay.protocol.fields import JsonValue, OpenEnum

NotifyUrls = Annotated[list[Annotated[str, Field(max_length=2000)]], Field(min_length=1, max_length=20)]


class SettingKind(StrEnum):
    """How the page edits a setting."""

    TEXT = "text"
    NUMBER = "number"
    LIST = "list"
    # Any of `choices`.
    CHOICES = "choices"
    # A folder on the desk's machine.
    FOLDER = "folder"
    FOLDERS = "folders"


class SettingSource(StrEnum):
    """The source of a setting's value. Only values from `file` and `default` can be changed on the page."""

    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class DeskSetting(AnswerBody):
    """A setting. Secrets in `value` are masked. `is_live`: a change applies at once. `needs_restart`: the desk still
    runs with an earlier value. `warning` describes a problem with the current value, or is null."""

    name: str
    group: str
    title: str
    description: str
    kind: OpenEnum[SettingKind]
    value: Any
    default: Any
    source: OpenEnum[SettingSource]
    variable: str
    is_live: bool
    is_secret: bool
    needs_restart: bool
    warning: str | None
    choices: list[str]
    minimum: float | None
    maximum: float | None


class DeskSettingsAnswer(AnswerBody):
    """The settings of a desk, and the file that they are written to."""

    file: LocalPath
    has_password: bool
    items: list[DeskSetting]


class PutDeskSettings(Request):
    """Values by name. Null removes a value from the file, so that its default applies. A masked secret keeps its
    value."""

    model_config = example(values={"desk.notify_on": ["failed"], "desk.output_folder": None})

    values: Annotated[dict[Annotated[str, Field(max_length=100)], JsonValue], Field(max_length=50)]


class PutPassword(Request):
    model_config = example(password="correct horse battery")

    password: Annotated[str, Field(max_length=1000)]


class PasswordState(AnswerBody):
    has_password: bool


class NotificationTest(Request):
    """Addresses to test. A masked address is one of the saved ones."""

    model_config = example(urls=["desktop://"])

    urls: NotifyUrls


class NotificationTestResult(AnswerBody):
    """The address without secrets, and the reason why the test was not sent, or null."""

    url: str
    problem: str | None


class FolderList(AnswerBody):
    """The folders in a folder of the desk's machine. `parent` is null for the top folder. `more` is the number of
    folders that are left out."""

    path: LocalPath
    parent: LocalPath | None
    folders: list[str]
    more: int


class NewFolder(Request):
    path: Annotated[str, Field(min_length=1, max_length=4000)]
