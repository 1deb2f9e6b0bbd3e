"""The boot script of an instance, which runs the worker as a service, with the secret from Parameter Store."""

import re
from importlib.resources import files

from comfyrelay.autoscaling.providers.aws.names import HOOK, Names
from comfyrelay.autoscaling.provisioning.options import AwsOptions

# A terminating worker has TERMINATION_SECONDS of its settings to finish or return its jobs; the group waits longer.
HOOK_SECONDS = 300
# `${name}` is a value and `$${` is `${`, as in Terraform, which renders the same file.
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(\w+)\}")


def user_data(names: Names, options: AwsOptions, *, region: str, api_base_url: str) -> str:
    values = {
        "fleet": names.fleet,
        "stage": names.stage,
        "group": names.group,
        "hook": HOOK,
        "secret_name": names.secret,
        "region": region,
        "api_base_url": re.sub(r'(["\\$`])', r"\\\1", options.api_base_url or api_base_url),
        "comfyui_folder": options.comfyui_folder,
        "command": options.command,
        "user": options.user,
        "after": f" {options.comfyui_service}" if options.comfyui_service else "",
    }
    template = (files(__package__) / "user_data.sh.tftpl").read_text("utf-8")
    return _PLACEHOLDER.sub(lambda found: values[found[1]] if found[1] else "${", template)
