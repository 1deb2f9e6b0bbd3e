"""The API documentation has a valid example for every required body."""

import json
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from comfyrelay.server.app import ROUTERS

BODIES = {
    f"{method} {route.path}": route.body_field.field_info.annotation
    for router in ROUTERS
    for route in router.load().routes
    if isinstance(route, APIRoute) and route.body_field is not None and route.body_field.field_info.is_required()
    for method in sorted(route.methods or ())
}


@pytest.mark.parametrize("route", BODIES)
def test_every_body_has_a_valid_example(route: str) -> None:
    model: Any = BODIES[route]
    assert issubclass(model, BaseModel)
    examples = model.model_json_schema().get("examples", [])
    assert examples
    for example in examples:
        model.model_validate_json(json.dumps(example))
