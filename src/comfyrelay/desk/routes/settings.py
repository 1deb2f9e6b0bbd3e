"""The settings of the desk, for its owner. Guests may not call these routes."""

from typing import Annotated

from fastapi import Query, status

from comfyrelay.desk.folder_list import list_folders
from comfyrelay.desk.state import DeskState, DeskStateOf
from comfyrelay.protocol import desk_settings as wire
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router

router = Router(prefix="/api/desk", tags=["desk"])


@router.get("/settings", responses=error_responses(401, 403, 409))
async def settings(state: DeskStateOf, _user: CurrentUser) -> Answer[wire.DeskSettingsAnswer]:
    """Return the settings with their values, defaults and sources. Secrets are masked."""
    return Answer(data=await _settings(state))


@router.put("/settings", responses=error_responses(401, 403, 409, 422))
async def put_settings(
    body: wire.PutDeskSettings, state: DeskStateOf, _user: CurrentUser
) -> Answer[wire.DeskSettingsAnswer]:
    """Write settings to the configuration file, and apply the ones that need no restart."""
    await state.editor.save(body.values)
    data = await _settings(state)
    waiting = [setting.title for setting in data.items if setting.needs_restart]
    message = f"Saved. Restart the desk to apply: {', '.join(waiting)}." if waiting else "Saved."
    return Answer(data=data, message=message)


@router.put("/password", responses=error_responses(401, 403, 422))
async def put_password(body: wire.PutPassword, state: DeskStateOf, _user: CurrentUser) -> Answer[wire.PasswordState]:
    """Set the password for other machines. Sessions of an earlier password end."""
    await state.editor.set_password(body.password)
    return Answer(data=wire.PasswordState(has_password=True), message="The password is set.")


@router.delete("/password", responses=error_responses(401, 403, 409))
async def delete_password(state: DeskStateOf, _user: CurrentUser) -> Answer[wire.PasswordState]:
    """Remove the password. 409 while other machines can reach the desk."""
    await state.editor.remove_password()
    return Answer(data=wire.PasswordState(has_password=False), message="The password is removed.")


@router.post("/notifications/test", status_code=status.HTTP_200_OK, responses=error_responses(401, 403, 422))
async def send_test(
    body: wire.NotificationTest, state: DeskStateOf, _user: CurrentUser
) -> Answer[Items[wire.NotificationTestResult]]:
    """Send a test notification to each address. That takes a moment."""
    return Answer(data=Items(items=await state.editor.test(body.urls)))


@router.get("/folders", responses=error_responses(401, 403, 404, 409, 422))
async def folders(
    _user: CurrentUser, path: Annotated[str, Query(max_length=4000)] = "", hidden: bool = False
) -> Answer[wire.FolderList]:
    """List the folders in a folder of the desk's machine; in the home folder without `path`."""
    return Answer(data=await list_folders(path, shows_hidden=hidden))


async def _settings(state: DeskState) -> wire.DeskSettingsAnswer:
    return wire.DeskSettingsAnswer(
        file=str(state.live.file), has_password=state.editor.has_password, items=await state.editor.show()
    )
