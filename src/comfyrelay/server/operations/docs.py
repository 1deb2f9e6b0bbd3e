"""The API documentation: a page that loads nothing from other servers."""

from importlib import resources
from typing import Literal

from fastapi import Response
from fastapi.responses import FileResponse, HTMLResponse

from comfyrelay.server.http.routing import Router

router = Router(prefix="/docs", include_in_schema=False)

# The page must not execute scripts of others in a signed-in browser.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ComfyRelay API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
START = 'SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null});\n'
# The files of Swagger UI are all that is used of this package.
FILES = resources.files("fastapi_offline") / "static"


@router.get("")
async def page() -> Response:
    return HTMLResponse(PAGE, headers=HEADERS)


@router.get("/start.js")
async def start() -> Response:
    return Response(START, media_type="text/javascript", headers=HEADERS)


@router.get("/{name}")
async def file(name: Literal["swagger-ui.css", "swagger-ui-bundle.js"]) -> Response:
    return FileResponse(str(FILES / name), headers=HEADERS)
