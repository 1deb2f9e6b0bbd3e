"""The table of listeners in the guide for operators names every module that listens, with its default address."""

import inspect
import re
from typing import Any

from comfyrelay.cli.fleet.kubernetes import scaler
from comfyrelay.cli.servers.gateway import gateway
from comfyrelay.cli.servers.simulator import simulator
from comfyrelay.cli.servers.worker import worker
from comfyrelay.comfyui.processes.launch import LOOPBACK
from comfyrelay.gateway.proxy import LOOPBACK as GATEWAY_HOST
from comfyrelay.http_client import is_loopback
from comfyrelay.settings import Settings
from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "comfyrelay"
LISTENING = re.compile(
    r"(?<!def )(?<!\.)\blisten\(|\b(create_server|create_unix_server|start_server|start_unix_server|TCPSite|SockSite"
    r"|UnixSite|add_insecure_port|add_secure_port|start_http_server|serve_forever)\("
    r"|\"--listen\", LOOPBACK|\bPIPES: str\("
)
# These modules define the helper or close the socket at once.
HELPERS = {"http_client.py", "desk/doctor.py"}


def table() -> dict[str, list[str]]:
    """Return the cells of each listener by its name."""
    text = (ROOT / "docs" / "howto" / "operate.md").read_text("utf-8")
    section = text.partition("## Listeners")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def default(command: Any, name: str) -> Any:
    return inspect.signature(command).parameters[name].default


def test_every_module_that_listens_is_in_the_table() -> None:
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    found = {name for name, text in sources.items() if LISTENING.search(text)}
    assert {cells[-1].strip("` ") for cells in table().values()} == found - HELPERS


def test_listeners_are_reachable_only_on_loopback_by_default() -> None:
    addresses = {name: cells[0] for name, cells in table().items()}
    settings = Settings()
    assert addresses["server"] == addresses["desk"] == f"`{settings.host}:{settings.port}`"
    assert addresses["simulator"] == f"`{default(simulator, 'host')}:{default(simulator, 'port')}`"
    assert default(worker, "metrics_port") is None
    assert addresses["gateway"] == f"`{GATEWAY_HOST}:{default(gateway, 'port')}`"
    assert addresses["worker metrics"] == f"off; `{default(worker, 'metrics_host')}`"
    assert addresses["scaler for KEDA"] == f"`{default(scaler, 'bind')}`"
    assert addresses["managed ComfyUI"] == f"`{LOOPBACK}`, a free port"
    hosts = [settings.host, default(simulator, "host"), default(worker, "metrics_host"), LOOPBACK, GATEWAY_HOST]
    assert all(map(is_loopback, [*hosts, default(scaler, "bind").rpartition(":")[0]]))
