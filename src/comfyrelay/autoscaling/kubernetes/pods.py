"""The pods of a cluster, through its API, as the service account of this pod may."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from ssl import create_default_context

import httpx

from comfyrelay.autoscaling.kubernetes.names import label_value
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ConfigurationError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FLEET_LABEL = "comfyrelay/autoscaling"
STAGE_LABEL = "comfyrelay/stage"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """`deletion_cost` is what somebody wrote, whatever that is."""

    name: str
    created_at: datetime
    is_ending: bool = False
    deletion_cost: str | None = None


def labels_of(slug: str, stage: Stage) -> dict[str, str]:
    """By which the pods of a fleet are found."""
    return {FLEET_LABEL: label_value(slug), STAGE_LABEL: str(stage)}


class Pods:
    """Those of the namespace that this pod is in: it may look at no others."""

    def __init__(self, client: httpx.AsyncClient, *, account: Path) -> None:
        self._client = client
        self._account = account
        self.namespace = _read(account / "namespace")

    async def list(self, labels: Mapping[str, str]) -> Sequence[Pod]:
        """Those with these labels that have not ended."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found = await self._call("GET", "", params={"labelSelector": selector})
        return [
            Pod(
                name=each["metadata"]["name"],
                created_at=datetime.fromisoformat(each["metadata"]["creationTimestamp"]),
                is_ending="deletionTimestamp" in each["metadata"],
                deletion_cost=(each["metadata"].get("annotations") or {}).get(DELETION_COST),
            )
            for each in found.json()["items"]
            # one that was evicted, or whose node is gone, may be listed for long
            if each.get("status", {}).get("phase") not in ("Failed", "Succeeded")
        ]

    async def set_deletion_cost(self, name: str, cost: int) -> None:
        """Of the pods of a Deployment that gets smaller, the cheapest end first. One that is gone is no error."""
        await self._call("PATCH", f"/{name}", json={"metadata": {"annotations": {DELETION_COST: str(cost)}}})

    async def close(self) -> None:
        await self._client.aclose()

    async def _call(self, method: str, path: str, **more: object) -> httpx.Response:
        # it is renewed every hour
        headers = {"Authorization": f"Bearer {_read(self._account / 'token')}"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        url = f"/api/v1/namespaces/{self.namespace}/pods{path}"
        answer = await self._client.request(method, url, headers=headers, **more)  # type: ignore[arg-type]
        if method != "PATCH" or answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()
        return answer


def pods_of_this_cluster(account: Path = ACCOUNT) -> Pods | None:
    """`None` outside of a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not account.is_dir():
        return None
    address = f"[{host}]" if ":" in host else host
    trusted = create_default_context(cafile=account / "ca.crt")
    return Pods(httpx.AsyncClient(base_url=f"https://{address}:{port}", verify=trusted), account=account)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
