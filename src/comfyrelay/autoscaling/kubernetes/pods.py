"""The pods of this namespace, read and annotated through the cluster's API with the pod's service account."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from ssl import create_default_context

import httpx

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.http_client import BoundedClient

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FLEET_LABEL = "comfyrelay/fleet"
STAGE_LABEL = "comfyrelay/stage"
# A label value has at most 63 characters. No uppercase or `_`: the Helm chart also uses the slug in names.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A pod of the cluster. `deletion_cost` is the raw annotation."""

    name: str
    created_at: datetime
    is_terminating: bool = False
    deletion_cost: str | None = None


def pod_labels(slug: str, stage: Stage) -> dict[str, str]:
    """Return the labels that select the pods of a fleet."""
    if not _LABEL.fullmatch(slug):
        raise InvalidInput(
            f"Kubernetes does not accept {slug!r} as a name. Use a fleet whose slug has at most 63 lowercase letters, "
            "digits and hyphens."
        )
    return {FLEET_LABEL: slug, STAGE_LABEL: str(stage)}


class Pods:
    def __init__(self, client: httpx.AsyncClient, *, account: Path) -> None:
        self._client = client
        self._account = account
        self.namespace = _read(account / "namespace")

    async def list(self, labels: Mapping[str, str]) -> Sequence[Pod]:
        """Return the pods with these labels, except finished ones."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        answer = await self._call("GET", "", params={"labelSelector": selector})
        return [
            Pod(
                name=pod["metadata"]["name"],
                created_at=datetime.fromisoformat(pod["metadata"]["creationTimestamp"]),
                is_terminating="deletionTimestamp" in pod["metadata"],
                deletion_cost=(pod["metadata"].get("annotations") or {}).get(DELETION_COST),
            )
            for pod in answer.json()["items"]
            # Evicted pods, and pods of a lost node, can remain in the list for a long time.
            if pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
        ]

    async def set_deletion_cost(self, name: str, cost: int) -> None:
        """Annotate a pod. A shrinking Deployment deletes the pods with the lowest cost first. Ignore a missing pod."""
        await self._call("PATCH", f"/{name}", json={"metadata": {"annotations": {DELETION_COST: str(cost)}}})

    async def close(self) -> None:
        await self._client.aclose()

    async def _call(self, method: str, path: str, **more: object) -> httpx.Response:
        # Read the token on each call, because the cluster renews it every hour.
        headers = {"Authorization": f"Bearer {_read(self._account / 'token')}"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        url = f"/api/v1/namespaces/{self.namespace}/pods{path}"
        answer = await self._client.request(method, url, headers=headers, **more)  # type: ignore[arg-type]
        if method != "PATCH" or answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()
        return answer


def connect_to_cluster(account: Path = ACCOUNT) -> Pods | None:
    """Return the pods of this namespace, or `None` outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not account.is_dir():
        return None
    address = f"[{host}]" if ":" in host else host
    context = create_default_context(cafile=account / "ca.crt")
    return Pods(BoundedClient(base_url=f"https://{address}:{port}", verify=context), account=account)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from None
