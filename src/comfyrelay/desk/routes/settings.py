"""The settings of the desk, for its owner. Guests may not call these routes."""

from typing import Annotated

from fastapi import Depends, Query, Request, status

from comfyrelay.desk.folder_list import create_folder, list_folders
from comfyrelay.desk.one_time_links import LINK_SECONDS
from comfyrelay.desk.origin_check import url_elsewhere
from comfyrelay.desk.page_settings.editor import SettingsEditor
from comfyrelay.desk.qr_code import qr_rows
from comfyrelay.desk.state import DeskState, DeskStateOf
from comfyrelay.errors import Conflict
from comfyrelay.http_client import is_loopback
from comfyrelay.protocol import desk_settings as wire
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.protocol.desk import PhoneLink
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router

router = Router(prefix="/api/desk", tags=["desk"])


# The editor is created by the first request, because most desks run without it.
async def _editor(request: Request, state: DeskStateOf) -> SettingsEditor:
    editor: SettingsEditor | None = getattr(request.app.state, "settings_editor", None)
    if editor is None:
        editor = request.app.state.settings_editor = SettingsEditor(state.live)
    return editor


EditorOf = Annotated[SettingsEditor, Depends(_editor)]


@router.get("/settings", responses=error_responses(401, 403, 409))
async def settings(state: DeskStateOf, editor: EditorOf, _user: CurrentUser) -> Answer[wire.DeskSettingsAnswer]:
    """Return the settings with their values, defaults and sources. Secrets are masked."""
    return Answer(data=await _settings(state, editor))


@router.put("/settings", responses=error_responses(401, 403, 409, 422))
async def put_settings(
    body: wire.PutDeskSettings, state: DeskStateOf, editor: EditorOf, _user: CurrentUser
) -> Answer[wire.DeskSettingsAnswer]:
    """Write settings to the configuration file, and apply the ones that need no restart."""
    await editor.save(body.values)
    data = await _settings(state, editor)
    waiting = [setting.title for setting in data.items if setting.needs_restart]
    message = f"Saved. Restart the desk to apply: {', '.join(waiting)}." if waiting else "Saved."
    if state.is_finishing_jobs():
        message += " The settings of ComfyUI apply when the running jobs have ended."
    return Answer(data=data, message=message)


@router.put("/password", responses=error_responses(401, 403, 422))
async def put_password(body: wire.PutPassword, editor: EditorOf, _user: CurrentUser) -> Answer[wire.PasswordState]:
    """Set the password for other machines. Sessions with the previous password end."""
    await editor.set_password(body.password)
    return Answer(data=wire.PasswordState(has_password=True), message="The password was set.")


@router.delete("/password", responses=error_responses(401, 403, 409))
async def delete_password(editor: EditorOf, _user: CurrentUser) -> Answer[wire.PasswordState]:
    """Remove the password. 409 while other machines can reach the desk."""
    await editor.remove_password()
    return Answer(data=wire.PasswordState(has_password=False), message="The password was removed.")


@router.post("/notifications/test", status_code=status.HTTP_200_OK, responses=error_responses(401, 403, 422))
async def send_test(
    body: wire.NotificationTest, editor: EditorOf, _user: CurrentUser
) -> Answer[Items[wire.NotificationTestResult]]:
    """Send a test notification to each address. This takes a moment."""
    return Answer(data=Items(items=await editor.test(body.urls)))


@router.get("/folders", responses=error_responses(401, 403, 404, 409, 422))
async def folders(
    _user: CurrentUser, path: Annotated[str, Query(max_length=4000)] = "", hidden: bool = False
) -> Answer[wire.FolderList]:
    """List the folders in a folder of the desk's machine; in the home folder without `path`."""
    return Answer(data=await list_folders(path, shows_hidden=hidden))


@router.post("/folders", status_code=status.HTTP_201_CREATED, responses=error_responses(401, 403, 404, 409, 422))
async def add_folder(body: wire.NewFolder, _user: CurrentUser) -> Answer[wire.FolderList]:
    """Create a folder in a folder of the desk's machine unless it exists, and list its content."""
    return Answer(data=await create_folder(body.path))


@router.post("/links/phone", status_code=status.HTTP_201_CREATED, responses=error_responses(401, 403, 409))
async def add_phone_link(request: Request, state: DeskStateOf, _user: CurrentUser) -> Answer[PhoneLink]:
    """Create a link for a phone, as a QR code. 409 if other machines cannot reach the desk."""
    url = state.links.make(_reachable_url(request, state))
    link = PhoneLink(url=url, seconds=int(LINK_SECONDS), rows=qr_rows(url))
    return Answer(data=link, message="The code works once.")


def _reachable_url(request: Request, state: DeskState) -> str:
    """Return the address at which a phone reaches the desk: the address of this page, unless the page was opened on the
    desk's machine."""
    if not is_loopback(request.url.hostname or ""):
        return f"{request.url.scheme}://{request.url.netloc}"
    url = url_elsewhere(state.live.settings)
    if url is None:
        raise Conflict(
            "Only this machine can reach the desk now. In Settings, set a password, let the desk listen on 0.0.0.0 and "
            "restart it. Or start it with: comfyrelay up --host 0.0.0.0"
        )
    return url


async def _settings(state: DeskState, editor: SettingsEditor) -> wire.DeskSettingsAnswer:
    return wire.DeskSettingsAnswer(
        file=str(state.live.file), has_password=editor.has_password, items=await editor.show(_warnings(state))
    )


def _warnings(state: DeskState) -> dict[str, str]:
    urls = state.uncleaned_comfyui()
    if not urls:
        return {}
    text = (
        f"Job files stay in input/comfyrelay and output/comfyrelay of {', '.join(urls)}, because its folder is not "
        "known here. Choose that folder, or occasionally delete the files there while no job is running."
    )
    return {"desk.comfyui_folders": text}
