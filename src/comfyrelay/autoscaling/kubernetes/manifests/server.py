"""Servers: two of them, behind one address."""

from comfyrelay.autoscaling.kubernetes.manifests.base import (
    DATA_DIR,
    SERVER,
    SERVER_PORT,
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

COMPONENT = "server"
REPLICAS = 2


def server_manifests(fleet: ClusterFleet) -> list[Manifest]:
    selector = {"matchLabels": labels(COMPONENT)}
    deployment = {"replicas": REPLICAS, "selector": selector, "template": _template(fleet)}
    port = {"name": "http", "port": SERVER_PORT, "targetPort": "http"}
    service = {"selector": labels(COMPONENT), "ports": [port]}
    budget = {"minAvailable": 1, "selector": selector}
    where = {"component": COMPONENT}
    return [
        manifest("apps/v1", "Deployment", SERVER, fleet.namespace, **where, spec=deployment),
        manifest("v1", "Service", SERVER, fleet.namespace, **where, spec=service),
        manifest("policy/v1", "PodDisruptionBudget", SERVER, fleet.namespace, **where, spec=budget),
    ]


def _template(fleet: ClusterFleet) -> Manifest:
    template = pod(COMPONENT, [_container(fleet)])
    # apart from each other, where there are nodes enough
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(COMPONENT)},
    }
    template["spec"] |= {"terminationGracePeriodSeconds": 30, "topologySpreadConstraints": [spread]}
    return template


def _container(fleet: ClusterFleet) -> Manifest:
    return container(
        "server",
        fleet.server_image,
        args=["server"],
        ports=[{"name": "http", "containerPort": SERVER_PORT}],
        env=variables(
            {
                "COMFYRELAY_HOST": "0.0.0.0",
                "COMFYRELAY_PORT": str(SERVER_PORT),
                "COMFYRELAY_PUBLIC_URL": fleet.public_url or fleet.server_url,
                "COMFYRELAY_STAGE": str(fleet.stage),
                "COMFYRELAY_STORAGE_URL": fleet.storage_url,
                "COMFYRELAY_DATA_DIR": DATA_DIR,
            },
            from_secret("COMFYRELAY_DATABASE_URL", SERVER_SECRET, "database-url"),
            from_secret("COMFYRELAY_SHARDS", SERVER_SECRET, "tenant-shards"),
            from_secret("COMFYRELAY_FLEET_SECRETS", SERVER_SECRET, "fleet-secrets"),
            from_secret("COMFYRELAY_SIGNING_SECRETS", SERVER_SECRET, "signing-secrets"),
            *(
                # where the node or a role gives them, nobody needs to
                from_secret(name, SERVER_SECRET, name.lower().replace("_", "-"), optional=True)
                for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL_S3")
            ),
        ),
        resources={"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
        # it brings the databases up first, and waits a minute for them
        startupProbe=_probe("/healthz", periodSeconds=5, failureThreshold=30),
        livenessProbe=_probe("/healthz", periodSeconds=10, failureThreshold=3),
        readinessProbe=_probe("/readyz", periodSeconds=5, failureThreshold=2),
        # until nobody is sent here any more
        lifecycle={"preStop": {"exec": {"command": ["sleep", "5"]}}},
    )


def _probe(path: str, **often: int) -> Manifest:
    return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5, **often}
