"""Names in a cluster: fewer letters are allowed there than in the slug of a fleet."""

import re

from comfyrelay.errors import InvalidInput

# of a label's value, and of most names
LONGEST = 63
# KEDA puts `keda-hpa-` before the name of what it scales
LONGEST_SCALED = LONGEST - len("keda-hpa-")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def label_value(slug: str) -> str:
    """The slug of a fleet as it stands in labels and in names; `InvalidInput` when it cannot."""
    if not _NAME.fullmatch(slug) or len(slug) > LONGEST:
        raise InvalidInput(
            f"Kubernetes does not take {slug!r} as a name. Use a fleet whose slug has only small letters, digits and "
            f"hyphens, at most {LONGEST} of them."
        )
    return slug


def scaled_name(prefix: str, slug: str, stage: str) -> str:
    """The name of the Deployment of a fleet."""
    name = f"{prefix}-{stage}-{label_value(slug)}"
    if len(name) > LONGEST_SCALED:
        raise InvalidInput(f"{name!r} is {len(name)} letters long, and may be {LONGEST_SCALED}: shorten the slug.")
    return name
