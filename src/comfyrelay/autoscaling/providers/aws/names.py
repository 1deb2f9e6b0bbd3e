"""Names of a fleet's AWS resources. They are derived from the fleet alone, so nothing is stored."""

import re
from dataclasses import dataclass

from comfyrelay.autoscaling.providers.aws.access import AwsError
from comfyrelay.autoscaling.providers.base import RefusalKind

# The CloudWatch metrics use these names as dimensions, and the IAM policy uses the fleet tag as a condition.
FLEET_TAG = "FleetSlug"
STAGE_TAG = "Stage"
# Fleet and stage in one value. The AWS console shows this tag, and budgets filter by it.
NAME_TAG = "Name"
HOOK = "comfyrelay-drain"
# Slugs become parts of names, paths and a script.
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class Names:
    fleet: str
    stage: str

    def __post_init__(self) -> None:
        if not _SLUG.fullmatch(self.fleet):
            text = f"AWS does not accept the fleet name {self.fleet!r}. Use at most 100 letters, digits, - and _."
            raise AwsError(text, kind=RefusalKind.SETUP)

    @property
    def group(self) -> str:
        return f"asg-{self.stage}-{self.fleet}"

    @property
    def launch_template(self) -> str:
        return f"lt-{self.stage}-{self.fleet}"

    @property
    def secret(self) -> str:
        return f"/comfyrelay/{self.stage}/{self.fleet}/fleet-secret"

    @property
    def budget(self) -> str:
        return f"comfyrelay-{self.stage}-{self.fleet}"

    @property
    def from_zero(self) -> str:
        """The name of a policy and its alarm."""
        return f"{self.group}-from-zero"

    @property
    def backlog(self) -> str:
        return f"{self.group}-backlog"

    @property
    def tags(self) -> dict[str, str]:
        return {FLEET_TAG: self.fleet, STAGE_TAG: self.stage, NAME_TAG: self.group}
