"""The workers of a fleet, each a pod with a ComfyUI beside it, as many as the scaler says."""

from comfyrelay.autoscaling.kubernetes.manifests.base import (
    DATA_DIR,
    FLEET_SECRET,
    SCALER,
    SCALER_PORT,
    USER_ID,
    ClusterFleet,
    Manifest,
    container,
    from_secret,
    manifest,
    pod,
    variables,
)

COMPONENT = "worker"
GPU = "nvidia.com/gpu"
COMFYUI = "http://127.0.0.1:8188"
METRICS_PORT = 9100
# for giving back what was not finished, and for ComfyUI to end after the worker
MARGIN_SECONDS = 30


def worker_manifests(fleet: ClusterFleet) -> list[Manifest]:
    """No number of replicas: who applies this again must not end pods that work."""
    where = {"component": COMPONENT}
    deployment = {
        "selector": {"matchLabels": fleet.labels},
        # there is no second GPU for the time in between
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "template": _template(fleet),
    }
    return [
        manifest("apps/v1", "Deployment", fleet.name, fleet.namespace, **where, spec=deployment),
        manifest("keda.sh/v1alpha1", "ScaledObject", fleet.name, fleet.namespace, **where, spec=_scaled(fleet)),
    ]


def _scaled(fleet: ClusterFleet) -> Manifest:
    """What is decided is calm already: Kubernetes does it at once, in both directions."""
    at_once = {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": fleet.max_pods, "periodSeconds": 15}],
    }
    address = f"{SCALER}.{fleet.namespace}:{SCALER_PORT}"
    metadata = {"scalerAddress": address, "fleet": fleet.slug, "stage": str(fleet.stage)}
    return {
        "scaleTargetRef": {"name": fleet.name},
        "pollingInterval": 15,
        "cooldownPeriod": 0,
        "minReplicaCount": 0,
        "maxReplicaCount": fleet.max_pods,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": at_once, "scaleDown": at_once}}},
        "triggers": [{"type": "external-push", "metadata": metadata}],
    }


def _template(fleet: ClusterFleet) -> Manifest:
    template = pod(COMPONENT, [_worker(fleet)], more_labels=fleet.labels)
    template["spec"] |= {
        "terminationGracePeriodSeconds": fleet.finish_seconds + MARGIN_SECONDS,
        "initContainers": [_comfyui(fleet)],
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        **({"nodeSelector": dict(fleet.node_selector)} if fleet.node_selector else {}),
    }
    # an image of the operator's: who it runs as is said there
    template["spec"]["securityContext"] = {"fsGroup": template["spec"]["securityContext"]["fsGroup"]}
    return template


def _comfyui(fleet: ClusterFleet) -> Manifest:
    """A container that is started before the worker and ended after it. Beside the worker it would be told to end at
    the same moment, and the job that the worker wants to finish with it."""
    return {
        "name": "comfyui",
        "image": fleet.comfyui_image,
        "restartPolicy": "Always",
        "resources": {"limits": {GPU: fleet.gpus}},
        # Models are loaded with the first job: this is only the start of the process. It is asked from inside, for
        # ComfyUI lets in whoever reaches it, and need not listen to the network for this.
        "startupProbe": {
            "exec": {"command": ["python3", "-c", f"from urllib.request import *; urlopen('{COMFYUI}/system_stats')"]},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 300,
        },
    }


def _worker(fleet: ClusterFleet) -> Manifest:
    """Ready as soon as it runs: of the pods of a Deployment that gets smaller, those that are not ready end first,
    whatever they are worth."""
    found = container(
        "worker",
        fleet.worker_image,
        args=["worker", "--metrics-port", str(METRICS_PORT)],
        ports=[{"name": "metrics", "containerPort": METRICS_PORT}],
        env=variables(
            {
                "API_BASE_URL": fleet.server_url,
                "FLEET_SLUG": fleet.slug,
                "FLEET_STAGE": str(fleet.stage),
                "COMFYUI_BASE_URL": COMFYUI,
                "MAX_CONCURRENCY": str(fleet.slots),
                "COMFYRELAY_WORKER_DATA_DIR": DATA_DIR,
                "COMFYRELAY_WORKER_SHUTDOWN_SECONDS": str(fleet.finish_seconds),
                # the cluster tells of Spot notices, by asking the pod to end
                "COMFYRELAY_WORKER_METADATA_URL": "off",
            },
            from_secret("FLEET_SECRET", FLEET_SECRET, str(fleet.stage)),
            {"name": "WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ),
        resources={"requests": {"cpu": "100m", "memory": "256Mi"}},
        livenessProbe={
            "httpGet": {"path": "/metrics", "port": "metrics"},
            "periodSeconds": 20,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    )
    found["securityContext"] |= {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return found
