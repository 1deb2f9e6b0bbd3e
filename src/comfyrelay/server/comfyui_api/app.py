"""The application of ComfyUI's API."""

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import WebSocketRoute

from comfyrelay.server.comfyui_api import blueprints, editor, extensions, files, jobs, nodes, prompts
from comfyrelay.server.comfyui_api.frontend import frontend_routes
from comfyrelay.server.comfyui_api.socket import Sockets
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.middleware import RequestLog, SecurityHeaders

log = structlog.get_logger(__name__)
MODULES = (prompts, jobs, files, nodes, editor, blueprints, extensions)


def create_comfyui_app(context: Context) -> Starlette:
    """Create the application. Its engine runs in the application of ComfyRelay's own API."""
    sockets = Sockets()
    app = Starlette(
        routes=[
            *(route for module in MODULES for route in module.routes.routes),
            *(WebSocketRoute(path, sockets.serve) for path in ("/ws", "/api/ws")),
            # The last route serves files at all other paths.
            *frontend_routes(context.settings),
        ],
        exception_handlers={404: _plain, 405: _plain, Exception: _failed},
    )
    app.router.redirect_slashes = False
    app.state.context = context
    # The middleware that is added last is the outermost.
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestLog)
    return app


async def _plain(_request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return PlainTextResponse({404: "404: Not Found", 405: "405: Method Not Allowed"}[status], status_code=status)


async def _failed(request: Request, error: Exception) -> Response:
    # The cause is hidden from the caller.
    log.error("request.failed", path=request.url.path, exc_info=error)
    return PlainTextResponse("500 Internal Server Error", status_code=500)
