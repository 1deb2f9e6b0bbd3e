"""The scaler, which KEDA asks, and which says to the cluster what each pod is worth."""

from comfyrelay.autoscaling.kubernetes.manifests.base import (
    DATA_DIR,
    SCALER,
    SCALER_PORT,
    SERVER_SECRET,
    ClusterFleet,
    Manifest,
    container,
    from_secret,
    labels,
    manifest,
    pod,
    variables,
)

COMPONENT = "scaler"
RBAC = "rbac.authorization.k8s.io"


def scaler_manifests(fleet: ClusterFleet) -> list[Manifest]:
    where = {"component": COMPONENT}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}
    account = {"kind": "ServiceAccount", "name": SCALER, "namespace": fleet.namespace}
    role = {"apiGroup": RBAC, "kind": "Role", "name": SCALER}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels(COMPONENT)}, "template": _template(fleet)}
    port = {"name": "grpc", "port": SCALER_PORT, "targetPort": "grpc"}
    service = {"selector": labels(COMPONENT), "ports": [port]}
    return [
        manifest("v1", "ServiceAccount", SCALER, fleet.namespace, **where),
        manifest(f"{RBAC}/v1", "Role", SCALER, fleet.namespace, **where, rules=[rule]),
        manifest(f"{RBAC}/v1", "RoleBinding", SCALER, fleet.namespace, **where, subjects=[account], roleRef=role),
        manifest("apps/v1", "Deployment", SCALER, fleet.namespace, **where, spec=deployment),
        manifest("v1", "Service", SCALER, fleet.namespace, **where, spec=service),
    ]


def _template(fleet: ClusterFleet) -> Manifest:
    template = pod(COMPONENT, [_container(fleet)])
    template["spec"] |= {"serviceAccountName": SCALER, "automountServiceAccountToken": True}
    return template


def _container(fleet: ClusterFleet) -> Manifest:
    probe = {"tcpSocket": {"port": "grpc"}, "periodSeconds": 5}
    return container(
        "scaler",
        fleet.server_image,
        args=["fleet", "scaler", "--bind", f"0.0.0.0:{SCALER_PORT}"],
        ports=[{"name": "grpc", "containerPort": SCALER_PORT}],
        env=variables(
            {"COMFYRELAY_DATA_DIR": DATA_DIR},
            from_secret("COMFYRELAY_DATABASE_URL", SERVER_SECRET, "database-url"),
            from_secret("COMFYRELAY_SHARDS", SERVER_SECRET, "tenant-shards"),
        ),
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        # the server brings the databases up, which it waits for
        startupProbe={**probe, "failureThreshold": 30},
        livenessProbe={**probe, "periodSeconds": 10},
        readinessProbe=probe,
    )
