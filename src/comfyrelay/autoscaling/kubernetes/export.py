"""A fleet as files for `kubectl apply`."""

from collections.abc import Mapping
from typing import Any

import yaml

from comfyrelay.autoscaling.kubernetes.manifests.base import ClusterFleet, Manifest
from comfyrelay.autoscaling.kubernetes.manifests.scaler import scaler_manifests
from comfyrelay.autoscaling.kubernetes.manifests.server import server_manifests
from comfyrelay.autoscaling.kubernetes.manifests.workers import worker_manifests
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import Fleet
from comfyrelay.errors import InvalidInput

# what a fleet's machines may say of themselves under `options`; the first is what the decision expects
OPTIONS = ("boot_seconds", "gpus", "node_selector")


def manifests(fleet: ClusterFleet) -> dict[str, list[Manifest]]:
    """By file."""
    return {
        "server.yaml": server_manifests(fleet),
        "scaler.yaml": scaler_manifests(fleet),
        f"fleet-{fleet.stage}-{fleet.slug}.yaml": worker_manifests(fleet),
    }


def as_yaml(found: list[Manifest]) -> str:
    text: str = yaml.dump_all(found, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """The same thing twice is written twice: people read it."""
        del data
        return True


def cluster_fleet(slug: str, stage: Stage, known: Fleet | None, given: Mapping[str, Any]) -> ClusterFleet:
    """What is given, and of what is not, what the fleet says of itself."""
    values = {name: value for name, value in given.items() if value is not None}
    if known is not None:
        spec = known.machine_spec
        values = {
            "max_pods": known.scaling_spec.limits.max_machines,
            "slots": spec.slots,
            **({"comfyui_image": spec.image} if spec.image else {}),
            **_options(spec.options),
            **values,
        }
    if "comfyui_image" not in values:
        raise InvalidInput(
            f"It is not known which ComfyUI the fleet {slug!r} runs: give --comfyui-image, or set `machines.image`."
        )
    return ClusterFleet(slug=slug, stage=stage, **values)


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(options.keys() - set(OPTIONS)):
        raise InvalidInput(
            f"The fleet's `machines.options` have {', '.join(unknown)}, which a cluster does not know. "
            f"It knows {', '.join(OPTIONS)}."
        )
    gpus, nodes = options.get("gpus", 1), options.get("node_selector", {})
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
        raise InvalidInput(f"`gpus` in the fleet's `machines.options` must be a whole number, not {gpus!r}.")
    if not isinstance(nodes, Mapping) or not all(isinstance(each, str) for each in nodes.values()):
        raise InvalidInput('`node_selector` in the fleet\'s `machines.options` must be like {"gpu": "l4"}.')
    return {"gpus": gpus, "node_selector": dict(nodes)}
