"""Show the settings with their sources, and write changes to the configuration file."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from typing import Any

from comfyrelay.configuration import ArgumentsOnly, check_values, own_values
from comfyrelay.desk.addresses import public_hosts
from comfyrelay.desk.notifications.notifier import Notifier, why_unusable, without_secrets
from comfyrelay.desk.page_settings.file import change_values, read_document, write_document
from comfyrelay.desk.page_settings.live import LiveSettings
from comfyrelay.desk.page_settings.table import BY_NAME, DESK, PAGE_SETTINGS, PageSetting
from comfyrelay.desk.password import has_password, remove_password, set_password
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.errors import ConfigurationError, Conflict, InvalidInput
from comfyrelay.http_client import without_password
from comfyrelay.protocol.desk_settings import DeskSetting, NotificationTestResult, SettingKind, SettingSource
from comfyrelay.settings import Settings

_Hide = Callable[[str], str]
_TABLES: Mapping[str | None, type[ArgumentsOnly]] = {None: Settings, DESK: DeskSettings}
_PASSWORD_FIRST = "Other machines could then reach the desk, so set a password first."
_WHOLE_PATH = "Write the full path, which begins at the top folder."
_UNKNOWN_MASK = "An address with … is no longer saved. Write the full address, or remove it."
# Only this process can compute the digests of secrets that the page sees.
_MASK_KEY = token_bytes(32)
_TEST_TITLE, _TEST_BODY = "ComfyRelay", "If you can read this, notifications arrive here."


class SettingsEditor:
    """Reads and changes the configuration file of a running desk."""

    def __init__(self, live: LiveSettings) -> None:
        self._live = live
        # The values at this start, for settings that apply after a restart.
        self._started = {setting.name: self._running(setting) for setting in PAGE_SETTINGS}
        self._lock = asyncio.Lock()

    @property
    def has_password(self) -> bool:
        return has_password(self._live.settings.data_dir)

    async def show(self, warnings: Mapping[str, str]) -> list[DeskSetting]:
        """Return the settings. `warnings` contains sentences by setting name."""
        return await asyncio.to_thread(self._list, warnings)

    async def save(self, values: Mapping[str, Any]) -> None:
        """Check and write values, and apply the ones that need no restart. Raises `InvalidInput` with all problems."""
        async with self._lock:
            models = await asyncio.to_thread(self._write, values)
            self._live.change(settings=models[0], desk=models[1])

    async def test(self, urls: Sequence[str]) -> list[NotificationTestResult]:
        """Send a test notification to each address."""
        in_file: Mapping[str, Any] = {}
        with suppress(Conflict):
            in_file = await asyncio.to_thread(self._read)
        wanted = _unmask(urls, self._known_urls(in_file, "notify_urls"))
        reasons = {url: _UNKNOWN_MASK for url in wanted if _is_masked(url)}
        failures = await Notifier().send(_TEST_TITLE, _TEST_BODY, [url for url in wanted if url not in reasons])
        reasons |= {failure.url_given: failure.why for failure in failures}
        return [NotificationTestResult(url=_masked(url), problem=reasons.get(url)) for url in wanted]

    async def set_password(self, password: str) -> None:
        """Set the password of the page. Sessions with the previous password end."""
        await asyncio.to_thread(set_password, self._live.settings.data_dir, password)

    async def remove_password(self) -> None:
        async with self._lock:
            running = public_hosts(self._live.settings, self._live.desk.allowed_hosts)
            if hosts := dict.fromkeys([*running, *await asyncio.to_thread(self._saved_hosts)]):
                when = "" if running else " after a restart"
                raise Conflict(
                    f"Other machines can reach the desk at {', '.join(hosts)}{when}, so the page needs a password. Let "
                    "it listen on 127.0.0.1 only, and remove the allowed hosts."
                )
            await asyncio.to_thread(remove_password, self._live.settings.data_dir)

    def _saved_hosts(self) -> list[str]:
        """Return the host names at which other machines can reach the desk after a restart."""
        in_file = self._read()
        host = _plain(self._model(None, in_file), "host")
        allowed = _plain(self._model(DESK, in_file), "allowed_hosts")
        return public_hosts(self._live.settings.model_copy(update={"host": host}), allowed)

    def _list(self, warnings: Mapping[str, str]) -> list[DeskSetting]:
        in_file = self._read()
        models = {table: self._model(table, in_file) for table in _TABLES}
        return [
            self._describe(setting, models[setting.table], in_file, warnings.get(setting.name))
            for setting in PAGE_SETTINGS
        ]

    def _describe(
        self, setting: PageSetting, saved: ArgumentsOnly, in_file: Mapping[str, Any], warning: str | None
    ) -> DeskSetting:
        source = self._source(setting, in_file)
        value = self._running(setting) if source is SettingSource.COMMAND_LINE else _plain(saved, setting.key)
        hide = _hide_function(setting)
        schema, items = setting.schema, setting.schema.get("items", {})
        return DeskSetting(
            name=setting.name,
            group=setting.group,
            title=setting.title,
            description=setting.description,
            kind=setting.kind,
            value=[_masked(url, hide) for url in value] if hide is not None else value,
            default=_plain(setting.model(), setting.key),
            source=source,
            variable=setting.variable,
            is_live=self._is_live(setting),
            is_secret=setting.is_secret,
            needs_restart=not self._is_live(setting) and value != self._started[setting.name],
            warning=warning,
            choices=list(items.get("enum", [])),
            minimum=schema.get("minimum", schema.get("exclusiveMinimum")),
            maximum=schema.get("maximum"),
        )

    def _source(self, setting: PageSetting, in_file: Mapping[str, Any]) -> SettingSource:
        if setting.name in self._live.options:
            return SettingSource.COMMAND_LINE
        if os.environ.get(setting.variable):
            return SettingSource.ENVIRONMENT
        return SettingSource.FILE if setting.key in own_values(in_file, setting.table) else SettingSource.DEFAULT

    def _write(self, values: Mapping[str, Any]) -> tuple[Settings, DeskSettings]:
        document = self._document()
        in_file = document.unwrap()
        errors = dict(self._refusals(values, in_file))
        if errors:
            raise InvalidInput(errors=errors)
        for table in _TABLES:
            changes = {
                BY_NAME[name].key: self._stored(BY_NAME[name], value, in_file)
                for name, value in values.items()
                if BY_NAME[name].table == table
            }
            if changes:
                change_values(document, table, changes)
        settings, desk = self._checked(document.unwrap(), values)
        write_document(self._live.file.resolve(), document)
        return settings, desk

    def _refusals(self, values: Mapping[str, Any], in_file: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        for name in values:
            setting = BY_NAME.get(name)
            if setting is None:
                yield name, "The page has no such setting."
                continue
            match self._source(setting, in_file):
                case SettingSource.ENVIRONMENT:
                    yield name, f"This is set in the environment, as {setting.variable}. Change it there."
                case SettingSource.COMMAND_LINE:
                    yield (
                        name,
                        "This is set on the command line. Start the desk without that option to change it here.",
                    )

    def _known_urls(self, in_file: Mapping[str, Any], key: str) -> list[str]:
        """Return the addresses that the page may show: those in the file, which may be newer, and those in use."""
        saved, _ = check_values(DeskSettings, own_values(in_file, DESK))
        return [url for desk in (saved, self._live.desk) if desk is not None for url in getattr(desk, key)]

    def _stored(self, setting: PageSetting, value: Any, in_file: Mapping[str, Any]) -> Any:
        """Return the value for the file. An empty text or list means the default."""
        if (hide := _hide_function(setting)) is not None and isinstance(value, list):
            texts = [text for text in value if isinstance(text, str)]
            value = _unmask(texts, self._known_urls(in_file, setting.key), hide)
        if isinstance(value, list):
            value = [text.strip() if isinstance(text, str) else text for text in value]
            value = [text for text in value if text != ""]
            # Notifications can be switched off for all events.
            return value if value or setting.kind is SettingKind.CHOICES else None
        return (value.strip() or None) if isinstance(value, str) else value

    def _checked(self, in_file: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Settings, DeskSettings]:
        """Return the settings that the desk uses from now on."""
        errors: dict[str, str] = {}
        found: dict[str | None, ArgumentsOnly] = {}
        for table, model in _TABLES.items():
            checked, problems = check_values(model, own_values(in_file, table))
            errors |= {f"{table}.{key}" if table else key: f"{text}." for key, text in problems.items()}
            if checked is not None:
                found[table] = checked
        if not errors:
            settings, desk = self._effective(found[None], Settings), self._effective(found[DESK], DeskSettings)
            errors = dict(_problems(settings, desk, values)) | dict(_comfyui_problems(found[DESK], values))
            if not errors and any(BY_NAME[name].group == "ComfyUI" for name in values):
                errors = dict(_launch_problems(desk))
            if not errors:
                return settings, desk
        raise InvalidInput(errors={name: f"{text[:1].upper()}{text[1:]}" for name, text in errors.items()})

    def _effective(self, saved: Any, model: type[Any]) -> Any:
        """Return the running settings with the saved values that apply at once."""
        running = self._live.desk if model is DeskSettings else self._live.settings
        live = [setting for setting in PAGE_SETTINGS if self._is_live(setting) and setting.model is model]
        changes = {
            setting.key: getattr(saved, setting.key) for setting in live if setting.name not in self._live.options
        }
        return running.model_copy(update=changes)

    def _is_live(self, setting: PageSetting) -> bool:
        return setting.is_live and setting.name not in self._live.fixed

    def _running(self, setting: PageSetting) -> Any:
        return _plain(self._live.desk if setting.table == DESK else self._live.settings, setting.key)

    def _document(self) -> Any:
        try:
            return read_document(self._live.file)
        except ConfigurationError as error:
            raise Conflict(error.detail) from None

    def _read(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._document().unwrap()
        return found

    def _model(self, table: str | None, in_file: Mapping[str, Any]) -> ArgumentsOnly:
        found, problems = check_values(_TABLES[table], own_values(in_file, table))
        if found is None:
            texts = " ".join(f"{key}: {text}." for key, text in problems.items())
            raise Conflict(f"{self._live.file} has invalid settings. {texts} Correct it in an editor first.")
        return found


def _problems(settings: Settings, desk: DeskSettings, values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the problems that the types of the settings do not find."""
    if "desk.notify_urls" in values:
        found = (_UNKNOWN_MASK if _is_masked(url) else why_unusable(url) for url in desk.notify_urls)
        reasons = [reason for reason in found if reason is not None]
        if reasons:
            yield "desk.notify_urls", reasons[0]
    if values.get("desk.input_folder") and (why := _missing_folder(Path(values["desk.input_folder"].strip()))):
        yield "desk.input_folder", why
    if values.get("desk.output_folder") and (why := _folder_problem(desk.output_folder)) is not None:
        yield "desk.output_folder", why
    host = values.get("host") or settings.host
    if not has_password(settings.data_dir) and public_hosts(
        settings.model_copy(update={"host": host}), desk.allowed_hosts
    ):
        yield ("host" if "host" in values else "desk.allowed_hosts"), _PASSWORD_FIRST


def _comfyui_problems(saved: Any, values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if values.get("desk.comfyui_url") and any(map(_is_masked, saved.comfyui_url)):
        yield "desk.comfyui_url", _UNKNOWN_MASK
    if values.get("desk.comfyui_dir"):
        if why := _missing_folder(saved.comfyui_dir):
            yield "desk.comfyui_dir", why
        elif not (saved.comfyui_dir.expanduser() / "main.py").is_file():
            yield "desk.comfyui_dir", f"{saved.comfyui_dir} has no main.py. Choose the folder that contains ComfyUI."
    if values.get("desk.comfyui_folders") or values.get("desk.comfyui_url"):
        folders, addresses = len(saved.comfyui_folders), len(saved.comfyui_url)
        if folders not in {0, 1, addresses}:
            yield (
                "desk.comfyui_folders",
                f"There are {folders} folders for {addresses} {'addresses' if addresses > 1 else 'address'}. Choose "
                "one for each address, or one for all.",
            )
        elif reasons := [why for folder in saved.comfyui_folders if (why := _missing_folder(folder))]:
            yield "desk.comfyui_folders", reasons[0]


def _launch_problems(desk: DeskSettings) -> Iterable[tuple[str, str]]:
    try:
        if desk.managed is not None:
            desk.managed.resolve()
    except ConfigurationError as error:
        yield "desk.comfyui_dir", error.detail


def _missing_folder(folder: Path) -> str | None:
    folder = folder.expanduser()
    if not folder.is_absolute():
        return _WHOLE_PATH
    return None if folder.is_dir() else f"There is no folder {folder}."


def _folder_problem(folder: Path | None) -> str | None:
    if folder is None:
        return None
    folder = folder.expanduser()
    if not folder.is_absolute():
        return _WHOLE_PATH
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder} cannot be created: {error.strerror}."
    return None if os.access(folder, os.W_OK) else f"The desk may not write to {folder}."


def _unmask(urls: Sequence[str], known: Sequence[str], hide: _Hide = without_secrets) -> list[str]:
    """Replace masked addresses by the saved ones."""
    by_mask = {_masked(url, hide): url for url in known}
    return [by_mask.get(url.strip(), url) for url in urls]


def _hide_function(setting: PageSetting) -> _Hide | None:
    """Return the function that hides secrets in addresses of this setting, or `None` if they contain no secrets."""
    if setting.is_secret:
        return without_secrets
    return without_password if setting.key == "comfyui_url" else None


def _masked(url: str, hide: _Hide = without_secrets) -> str:
    """Return an address without secrets. A digest distinguishes two addresses of one service."""
    shown = hide(url)
    if shown == url or _is_masked(url):
        return url
    return f"{shown} {hashlib.blake2b(url.encode(), key=_MASK_KEY, digest_size=3).hexdigest()}"


def _is_masked(url: str) -> bool:
    return "…" in url


def _plain(settings: ArgumentsOnly, key: str) -> Any:
    return settings.model_dump(mode="json")[key]
