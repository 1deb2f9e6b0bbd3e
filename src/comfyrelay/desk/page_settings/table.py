"""The settings on the page. Types, bounds and sentences come from the settings classes."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from comfyrelay.configuration import ArgumentsOnly, variable_of
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.protocol.desk_settings import SettingKind
from comfyrelay.settings import Settings

DESK = "desk"
_WITHOUT_MARKDOWN = str.maketrans("", "", "`*")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSetting:
    """A setting on the page. `is_live`: a change applies at once, and not only after a restart."""

    table: str | None
    key: str
    group: str
    title: str
    kind: SettingKind
    is_live: bool = False

    @property
    def name(self) -> str:
        """The name on the page and in requests, such as `desk.notify_on`."""
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def model(self) -> type[ArgumentsOnly]:
        return DeskSettings if self.table == DESK else Settings

    @property
    def variable(self) -> str:
        return variable_of(self.model, self.key)

    @property
    def description(self) -> str:
        """The sentence about the setting, without Markdown and without `comma-separated`, which concerns only the
        environment."""
        text = (self.model.model_fields[self.key].description or "").removeprefix("comma-separated: ")
        text = text.translate(_WITHOUT_MARKDOWN)
        return f"{text[:1].upper()}{text[1:]}."

    @property
    def default(self) -> Any:
        return self.model.model_fields[self.key].get_default(call_default_factory=True)

    @property
    def is_secret(self) -> bool:
        return not self.model.model_fields[self.key].repr

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value, without the alternative `null`."""
        found: dict[str, Any] = _schema_of(self.model)["properties"][self.key]
        options = [option for option in found.get("anyOf", [found]) if option.get("type") != "null"]
        return {name: value for option in reversed(options) for name, value in option.items()}


@cache
def _schema_of(model: type[ArgumentsOnly]) -> dict[str, Any]:
    return model.model_json_schema()


def _desk(key: str, group: str, title: str, kind: SettingKind, *, is_live: bool = False) -> PageSetting:
    return PageSetting(table=DESK, key=key, group=group, title=title, kind=kind, is_live=is_live)


def _server(key: str, group: str, title: str, kind: SettingKind, *, is_live: bool = False) -> PageSetting:
    return PageSetting(table=None, key=key, group=group, title=title, kind=kind, is_live=is_live)


PAGE_SETTINGS = (
    _desk("notify_urls", "Notifications", "Addresses", SettingKind.LIST, is_live=True),
    _desk("notify_on", "Notifications", "Notify when", SettingKind.CHOICES, is_live=True),
    _desk("output_folder", "Folders", "Output folder", SettingKind.FOLDER, is_live=True),
    _desk("output_names", "Folders", "Names of outputs", SettingKind.TEXT, is_live=True),
    _desk("input_folder", "Folders", "Input folder", SettingKind.FOLDER, is_live=True),
    _desk("comfyui_url", "ComfyUI", "Addresses", SettingKind.LIST, is_live=True),
    _desk("comfyui_public_url", "ComfyUI", "Addresses for other machines", SettingKind.LIST, is_live=True),
    _desk("comfyui_folders", "ComfyUI", "Folders of these addresses", SettingKind.FOLDERS, is_live=True),
    _desk("comfyui_dir", "ComfyUI", "Start this ComfyUI", SettingKind.FOLDER, is_live=True),
    _desk("comfyui_args", "ComfyUI", "Arguments", SettingKind.LIST, is_live=True),
    _desk("per_gpu", "ComfyUI", "Processes per GPU", SettingKind.TEXT, is_live=True),
    _server("host", "Access", "Listen on", SettingKind.TEXT),
    _server("port", "Access", "Port", SettingKind.NUMBER),
    _desk("allowed_hosts", "Access", "Allowed host names", SettingKind.LIST, is_live=True),
    _desk("keep_outputs_days", "Kept for", "Days until outputs are deleted", SettingKind.NUMBER, is_live=True),
    _server(
        "unused_upload_hours", "Kept for", "Hours until unused uploads are deleted", SettingKind.NUMBER, is_live=True
    ),
)
BY_NAME = {setting.name: setting for setting in PAGE_SETTINGS}
