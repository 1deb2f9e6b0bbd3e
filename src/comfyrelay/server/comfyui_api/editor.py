"""Settings and saved workflows, which ComfyUI's editor stores on its server."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from starlette.responses import JSONResponse, PlainTextResponse, Response

from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.server.comfyui_api.routing import Call, ComfyuiRoutes, empty, not_found, read_json, read_object
from comfyrelay.server.http.bodies import read_body
from comfyrelay.services.comfyui_api.user_files import UserFile, UserFiles
from comfyrelay.text import is_storable

routes = ComfyuiRoutes()
SETTINGS = "comfy.settings.json"
STYLE = "user.css"
# Without this setting, the editor opens its list of templates, which lacks those of ComfyUI.
FIRST_START_IS_OVER = "Comfy.TutorialCompleted"
# The editor does not record this for users whose first start is over. Some of its defaults depend on it.
FIRST_VERSION = "Comfy.InstalledVersion"
MAX_NAME_LENGTH, MAX_TEMPLATES = 200, 200
# Sources of templates, in the editor's terms.
JOB, WORKFLOW, CATALOGUE = "job", "workflow", "catalogue"
FILE_HEADERS = {"Content-Security-Policy": "default-src 'none'; sandbox", "X-Content-Type-Options": "nosniff"}
# The responses of a ComfyUI without these optional parts, which ComfyRelay does not have.
_WITHOUT: dict[str, Any] = {
    "/i18n": {},
    "/node_replacements": {},
}
_LOGS: dict[str, Any] = {
    "/internal/logs": "",
    "/internal/logs/raw": {"entries": [], "size": {"cols": 80, "rows": 24}},
    "/internal/folder_paths": {},
}


def _add_constant(path: str, content: Any, *, has_twin: bool) -> None:
    async def answer(_call: Call) -> Response:
        return JSONResponse(content)

    routes.add("GET", path, has_twin=has_twin)(answer)


def _add_constants() -> None:
    for path, content in _WITHOUT.items():
        _add_constant(path, content, has_twin=True)
    for path, content in _LOGS.items():
        _add_constant(path, content, has_twin=False)


_add_constants()


@routes.add("PATCH", "/internal/logs/subscribe", has_twin=False)
async def subscribe_logs(_call: Call) -> Response:
    """Accept the subscription. The logs of workers are not shown."""
    return empty()


@routes.add("GET", "/workflow_templates")
async def templates(call: Call) -> Response:
    """List the user's own workflows as templates."""
    page = await call.context.engine.catalogue.own_workflows.page(call.tenant_id, before_id=None, limit=MAX_TEMPLATES)
    return JSONResponse({WORKFLOW: [workflow.slug for workflow in page.items]} if page.items else {})


@routes.add("GET", "/workflow_templates/{source}/{name}.json")
async def document(call: Call) -> Response:
    """Return the workflow that a link opens: the workflow of a job, one that the user added, or, for administrators,
    one of the catalogue."""
    documents, source, name = call.context.engine.comfyui_api.documents, call.path("source"), call.path("name")
    if len(name) > MAX_NAME_LENGTH or not is_storable(name):
        return not_found()
    if source == JOB:
        return JSONResponse(await documents.of_job(call.tenant_id, name))
    if source == WORKFLOW:
        return JSONResponse(await documents.of_workflow(call.tenant_id, name))
    if source == CATALOGUE and call.user.is_admin:
        return JSONResponse(await documents.of_catalogue(name))
    return not_found()


@routes.add("GET", "/users")
async def users(_call: Call) -> Response:
    return JSONResponse({"storage": "server", "migrated": True})


@routes.add("POST", "/users")
async def create_user(_call: Call) -> Response:
    return JSONResponse({"error": "Users are managed by ComfyRelay."}, status_code=400)


@routes.add("GET", "/settings")
async def settings(call: Call) -> Response:
    return JSONResponse(await _settings(call))


@routes.add("POST", "/settings", body_limit="max_large_body_bytes")
async def change_settings(call: Call) -> Response:
    await _files(call).change_json(call.tenant_id, SETTINGS, await read_object(call, change_settings))
    return empty()


@routes.add("GET", "/settings/{id}")
async def setting(call: Call) -> Response:
    return JSONResponse((await _settings(call)).get(call.path("id")))


@routes.add("POST", "/settings/{id}", body_limit="max_large_body_bytes")
async def change_setting(call: Call) -> Response:
    value = await read_json(call, change_setting)
    await _files(call).change_json(call.tenant_id, SETTINGS, {call.path("id"): value})
    return empty()


@routes.add("GET", "/userdata")
async def list_files(call: Call) -> Response:
    folder = call.query("dir").strip("/")
    if not folder:
        return PlainTextResponse("Directory not provided", status_code=400)
    found = await _files(call).list(call.tenant_id, "" if folder == "." else folder)
    if not found:
        return PlainTextResponse("Directory not found", status_code=404)
    files = {file.path.removeprefix(f"{folder}/"): file for file in found}
    if not _is_on(call, "recurse"):
        files = {path: file for path, file in files.items() if "/" not in path}
    if _is_on(call, "full_info"):
        return JSONResponse([_file_info(path, file) for path, file in files.items()])
    if _is_on(call, "split"):
        return JSONResponse([[path, *path.split("/")] for path in files])
    return JSONResponse(list(files))


@routes.add("GET", "/v2/userdata")
async def list_folder(call: Call) -> Response:
    folder = call.query("path").strip("/")
    start = f"{folder}/" if folder else ""
    items: dict[str, dict[str, Any]] = {}
    for file in await _files(call).list(call.tenant_id, folder):
        name, slash, _ = file.path.removeprefix(start).partition("/")
        if slash:
            items[name] = {"name": name, "path": f"{start}{name}", "type": "directory"}
        else:
            items[name] = {"name": name, **_file_info(file.path, file), "type": "file"}
    if folder and not items:
        return PlainTextResponse("Requested path does not exist", status_code=404)
    return JSONResponse(list(items.values()))


@routes.add("GET", "/userdata/{file:path}")
async def read_file(call: Call) -> Response:
    path = _path(call)
    content = await _files(call).read(call.tenant_id, path)
    if content is None:
        return not_found()
    if path == STYLE:
        return Response(content, media_type="text/css", headers={"X-Content-Type-Options": "nosniff"})
    media_type = "application/json" if path.endswith(".json") else "application/octet-stream"
    headers = {**FILE_HEADERS, "Content-Disposition": "attachment"}
    return Response(content, media_type=media_type, headers=headers)


@routes.add("POST", "/userdata/{file:path}", body_limit="max_graph_bytes")
async def write_file(call: Call) -> Response:
    """Write a file, or move it: `/userdata/{file}/move/{to}`, where each path is one encoded segment."""
    overwrite = call.query("overwrite", "true").lower() != "false"
    segments = _segments(call)
    try:
        if len(segments) == 3 and segments[1] == "move":
            file = await _files(call).move(call.tenant_id, segments[0], segments[2], overwrite=overwrite)
        else:
            content = await read_body(call.request, write_file)
            file = await _files(call).write(call.tenant_id, _path(call), content, overwrite=overwrite)
    except Conflict as error:
        return PlainTextResponse(error.detail, status_code=409)
    except NotFound:
        return not_found()
    return JSONResponse(_file_info(file.path, file) if _is_on(call, "full_info") else file.path)


@routes.add("DELETE", "/userdata/{file:path}")
async def delete_file(call: Call) -> Response:
    try:
        await _files(call).delete(call.tenant_id, _path(call))
    except NotFound:
        return not_found()
    return Response(status_code=204)


async def _settings(call: Call) -> dict[str, Any]:
    return {**_initial_settings(), **await _files(call).read_json(call.tenant_id, SETTINGS)}


def _initial_settings() -> dict[str, Any]:
    try:
        return {FIRST_START_IS_OVER: True, FIRST_VERSION: version("comfyui-frontend-package")}
    except PackageNotFoundError:
        return {}


def _files(call: Call) -> UserFiles:
    return call.context.engine.comfyui_api.user_files


def _is_on(call: Call, name: str) -> bool:
    return call.query(name).lower() == "true"


def _segments(call: Call) -> list[str]:
    """Return the decoded segments after `/userdata/`. Clients encode the slashes of a path."""
    raw: bytes = call.request.scope.get("raw_path") or call.request.url.path.encode()
    _, _, rest = raw.partition(b"/userdata/")
    try:
        return [unquote(segment, errors="strict") for segment in rest.decode("ascii").split("/")]
    except UnicodeDecodeError:
        raise InvalidInput("This is not a valid file path.") from None


def _path(call: Call) -> str:
    return "/".join(_segments(call))


def _file_info(path: str, file: UserFile) -> dict[str, Any]:
    times = {"modified": file.modified_at, "created": file.created_at}
    return {
        "path": str(PurePosixPath(path)),
        "size": file.size,
        **{name: round(at.timestamp() * 1000) for name, at in times.items()},
    }
