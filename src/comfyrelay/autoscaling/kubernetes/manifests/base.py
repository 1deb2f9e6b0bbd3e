"""What all manifests have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comfyrelay import __version__
from comfyrelay.autoscaling.kubernetes.names import scaled_name
from comfyrelay.autoscaling.kubernetes.pods import labels_of
from comfyrelay.domain.queue.states import Stage

Manifest = dict[str, Any]

SERVER = "comfyrelay-server"
SCALER = "comfyrelay-scaler"
SERVER_PORT = 8420
SCALER_PORT = 8421
# The Secrets that the operator makes: what the server knows, and what workers register with, by stage.
SERVER_SECRET = "comfyrelay-server"
FLEET_SECRET = "comfyrelay-fleet"
# of the images, and of whoever owns the files in them
USER_ID = 10001
DATA_DIR = "/var/lib/comfyrelay"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFleet:
    """A fleet as a cluster runs it."""

    slug: str
    stage: Stage
    max_pods: int
    comfyui_image: str
    gpus: int = 1
    slots: int = 1
    # a worker that is asked to end has so long to finish its job
    finish_seconds: int = 570
    node_selector: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "comfyrelay"
    server_image: str = f"comfyrelay-server:{__version__}"
    worker_image: str = f"comfyrelay-worker:{__version__}"
    storage_url: str = "s3://comfyrelay"
    public_url: str | None = None

    @property
    def server_url(self) -> str:
        """Inside the cluster."""
        return f"http://{SERVER}.{self.namespace}:{SERVER_PORT}"

    @property
    def labels(self) -> dict[str, str]:
        return labels_of(self.slug, self.stage)

    @property
    def name(self) -> str:
        return scaled_name("comfyrelay", self.slug, self.stage)


def manifest(api: str, kind: str, name: str, namespace: str, *, component: str, **body: Any) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": labels(component)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "comfyrelay", "app.kubernetes.io/component": component}


def variables(plain: Mapping[str, str], *more: Manifest) -> list[Manifest]:
    return [*({"name": name, "value": value} for name, value in plain.items()), *more]


def from_secret(variable: str, secret: str, key: str, *, optional: bool = False) -> Manifest:
    reference = {"name": secret, "key": key, **({"optional": True} if optional else {})}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def container(name: str, image: str, **body: Any) -> Manifest:
    """One that can change nothing but its folders for files."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **body,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "data", "mountPath": DATA_DIR}, {"name": "tmp", "mountPath": "/tmp"}],
    }


def pod(component: str, containers: Sequence[Manifest], *, more_labels: Mapping[str, str] | None = None) -> Manifest:
    """A template; nothing in it may call the cluster, and nobody in it is root."""
    return {
        "metadata": {"labels": {**labels(component), **(more_labels or {})}},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": list(containers),
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        },
    }
