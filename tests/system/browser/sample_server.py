"""A server with sample content: effects with pictures, a user's videos, machines, fleets and eight days of statistics.

Two workers are real; the other machines exist only in the database.
"""

import asyncio
import json
import math
from collections.abc import Mapping

from comfyrelay.simulator import Fail, Slow
from comfyrelay.store.database import Database
from tests.support.graphs import invert_file
from tests.support.whole_system import INPUT, System
from tests.support.world import execute
from tests.system.browser.sample_desk import picture
from tests.system.browser.server import start_workers

__all__ = ["SETTINGS", "fill"]

SETTINGS = {"TOP_UP_URL": "https://studio.example.com/tokens"}
EFFECTS = (
    ("golden-hour", "Golden hour", 6),
    ("film-negative", "Film negative", 4),
    ("night-drive", "Night drive", 12),
    ("paper-cut", "Paper cut", 8),
    ("northern-lights", "Northern lights", 14),
    ("old-postcard", "Old postcard", 3),
)
PEOPLE = ("mara@northlight.example", "jonas@northlight.example", "ines@papermoon.example", "li@harbour.example")
ERROR = "mat1 and mat2 shapes cannot be multiplied (77x2048 and 768x320)"
GIB = 1 << 30
CARDS = (("NVIDIA RTX 4090", 24), ("NVIDIA L40S", 48), ("NVIDIA RTX 6000 Ada", 48), ("NVIDIA A10G", 24))
MACHINES = 14
MINUTES = 8 * 24 * 60


async def fill(system: System) -> dict[str, str]:
    """Return the addresses of the pages by name."""
    effects = await _offer(system)
    await start_workers(system)
    shown = await _work(system, effects)
    await _users(system)
    async with system._engine() as engine:
        central = engine.databases.central
        await _machines(central)
        await _statistics(central)
    for simulator in system.simulators:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=3600, steps=40))
    shown["running"] = await system.submit(effects["night-drive"], picture(4, 768, 512), label="Harbour road")
    await system.until_progress(shown["running"], 0.01)
    return _pages(shown) | {"console-dispatch": f"/console/dispatches?open={shown['failed_dispatch']}"}


async def _offer(system: System) -> dict[str, int]:
    effects = {}
    for number, (slug, name, price) in enumerate(EFFECTS):
        graph = invert_file("{{INPUT}}")
        effects[slug] = await system.effect(slug, graph, properties=[{**INPUT, "label": "Your picture"}])
        preview = await system.asset(picture(number + 2, 960, 640), name=f"{slug}.png")
        await system.admin("PATCH", f"/effects/{slug}", {"name": name, "credits_cost": price, "preview_path": preview})
        await system.admin("PATCH", f"/workflows/{slug}", {"name": name})
    return effects


async def _work(system: System, effects: Mapping[str, int]) -> dict[str, str]:
    """Add a week of mostly successful jobs of a user."""
    labels = ("Lighthouse", "Paper boat", "Tram at dusk", "Fox on the ice", "Market", "Greenhouse", "Kite", "Dunes")
    jobs = []
    for number, label in enumerate(labels):
        slug = EFFECTS[number % len(EFFECTS)][0]
        jobs.append(await system.submit(effects[slug], picture(number, 960, 640), label=label))
    await asyncio.gather(*(system.until(job, "completed") for job in jobs))
    for simulator in system.simulators:
        simulator.misbehave(Fail(class_type="ImageInvert", message=ERROR))
    failed = await system.submit(effects["paper-cut"], picture(11, 960, 640), label="Glassblower")
    await system.until(failed, "failed")
    for simulator in system.simulators:
        simulator.behave()
    await system.user("POST", "/tokens", {"name": "Batch script"})
    dispatch = str((await system.lease_of(failed))["id"])
    return {"done": jobs[0], "failed": failed, "failed_dispatch": dispatch}


async def _users(system: System) -> None:
    for email in PEOPLE:
        await system.admin("POST", "/users", {"email": email, "name": email.partition("@")[0].title()})
    for number, tenant in enumerate((await system.admin("GET", "/tenants"))["items"]):
        gift = {"amount": 250 * (number + 1), "reference": f"gift-{number}", "description": "Monthly tokens"}
        await system.admin("POST", f"/tenants/{tenant['id']}/credits", gift)
    scaled = {
        "slug": "spot",
        "name": "Spot L40S",
        "workflow_slugs": [slug for slug, _name, _price in EFFECTS],
        "machines": {"provider": "local", "instance_types": [{"name": "g6e.2xlarge", "price_per_hour": 1.12}]},
        "autoscaling": {"min_machines": 0, "max_machines": 12, "is_dry_run": True},
        "force": True,
    }
    await system.admin("POST", "/fleets", scaled)


async def _machines(central: Database) -> None:
    for number in range(1, MACHINES + 1):
        card, memory = CARDS[number % len(CARDS)]
        is_away = number == MACHINES
        device = {
            "server": "http://127.0.0.1:8188",
            "name": card,
            "slots": 1,
            "memory_total": memory * GIB,
            "memory_used": int(memory * GIB * (0.3 + 0.05 * number)),
            "load": 0.9,
        }
        await execute(
            central,
            "INSERT INTO workers (worker_id, display_name, fleet_id, stage, capabilities, devices, max_concurrency,"
            " version, protocol, capacity_type, instance_type, is_draining, last_seen_at, created_at)"
            " SELECT :id, :name, id, 'production', '{}', :devices, 1, '0.1.0', 2, :capacity, :kind, :draining,"
            " relay_now(:seen), relay_now(-86400) FROM fleets WHERE slug = :fleet",
            id=f"i-{number:04d}",
            name=f"rack {1 + number // 6}, card {1 + number % 6}",
            devices=json.dumps([device]),
            capacity="spot" if number % 2 else None,
            kind="g6e.2xlarge" if number % 2 else None,
            draining=number == MACHINES - 1,
            seen=-1500.0 if is_away else 86400.0,
            fleet="spot" if number % 2 else "home",
        )


async def _statistics(central: Database) -> None:
    """Return load that varies with day and night and has one bad evening."""
    rows = []
    for ago in range(MINUTES):
        day = 0.5 + 0.5 * math.cos(ago / (24 * 60) * math.tau - 0.5)
        swing = 1 + 0.18 * math.sin(ago / 7.3) + 0.1 * math.sin(ago / 2.1)
        busy = max(0, min(14, round(14 * day * swing)))
        waiting = max(0, round(40 * max(0.0, day - 0.55) * swing))
        done = max(0, round(1.6 * busy * swing))
        is_bad = 5 * 60 < ago < 5 * 60 + 40
        rows.append(
            {
                "ago": ago,
                "waiting": waiting,
                "oldest_wait_seconds": 4.0 * waiting,
                "busy": busy,
                "slots": 14 if ago < 3 * 24 * 60 else 12,
                "begun": done,
                "waited_seconds": done * (3.0 + 2.2 * waiting),
                "done": done,
                "failed": done // 6 if is_bad else int(done > 5 and ago % 47 == 0),
                "tokens": done * 7,
            }
        )
    names = ("waiting", "oldest_wait_seconds", "busy", "slots", "begun", "waited_seconds", "done", "failed", "tokens")
    values = ", ".join(f"json_extract(value, '$.{name}')" for name in names)
    await execute(
        central,
        f"INSERT OR REPLACE INTO samples (minute, workers, {', '.join(names)})"
        f" SELECT CAST(strftime('%s', 'now') AS INTEGER) / 60 - json_extract(value, '$.ago'), 14, {values}"
        " FROM json_each(:rows)",
        rows=json.dumps(rows),
    )


def _pages(shown: Mapping[str, str]) -> dict[str, str]:
    console = {
        f"console-{name}": f"/console/{path}"
        for name, path in {
            "overview": "",
            "overview-week": "?range=week",
            "workers": "workers",
            "worker": "workers/gpu-1",
            "worker-away": f"workers/i-{MACHINES:04d}",
            "add-worker": "workers?open=add",
            "fleets": "fleets",
            "fleet": "fleets/production/home",
            "fleet-workflows": "fleets/production/home?tab=workflows",
            "fleet-scaling": "fleets/production/spot?tab=autoscaling",
            "fleet-decisions": "fleets/production/spot?tab=decisions",
            "fleet-costs": "fleets/production/spot?tab=costs",
            "dispatches": "dispatches",
            "dispatches-failed": "dispatches?status=failed",
            "workflows": "workflows",
            "workflow": "workflows/golden-hour",
            "effects": "effects",
            "effect": "effects/golden-hour",
            "tenants": "tenants",
            "payments": "payments",
            "audit": "audit",
            "webhooks": "webhooks",
            "reconcile": "reconcile",
            "settings": "settings",
        }.items()
    }
    studio = {
        "studio": "/studio",
        "studio-effect": "/studio/effects/golden-hour",
        "studio-videos": "/studio/videos",
        "studio-done": f"/studio/videos/{shown['done']}",
        "studio-running": f"/studio/videos/{shown['running']}",
        "studio-failed": f"/studio/videos/{shown['failed']}",
        "wallet": "/wallet",
        "wallet-tokens": "/wallet?tab=tokens",
        "wallet-webhooks": "/wallet?tab=webhooks",
    }
    return console | studio
