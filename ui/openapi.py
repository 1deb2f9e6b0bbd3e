"""Write `openapi.json`, the API schema from which the types of the web app are generated.

python ui/openapi.py            write the schema
python ui/openapi.py --check    check that the schema is up to date
"""

import json
import sys
from pathlib import Path

from fastapi import FastAPI

from comfyrelay.desk.routes import ROUTERS as DESK_ROUTERS
from comfyrelay.protocol.problems import Problem
from comfyrelay.server import admin, operations, user

PLACE = Path(__file__).parent / "openapi.json"


def schema() -> str:
    """Return the schema of all routes for users, administrators and desks."""
    app = FastAPI(title="ComfyRelay", version="1", responses={422: {"model": Problem}})
    for router in (*user.ROUTERS, *admin.ROUTERS, *operations.ROUTERS, *DESK_ROUTERS):
        app.include_router(router.load())
    found = app.openapi()
    for each in found["components"]["schemas"].values():
        # responses may get new fields, but the app may only use declared ones
        if each.get("additionalProperties") is True and "properties" in each:
            del each["additionalProperties"]
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PLACE.write_text(schema(), "utf-8")
    elif PLACE.read_text("utf-8") != schema():
        sys.exit("ui/openapi.json is out of date: run `make schema` and fix the type errors.")
