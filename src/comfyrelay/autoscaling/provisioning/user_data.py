"""What an instance runs when it comes up: the worker as a service, with the secret from Parameter Store."""

from string import Template

from comfyrelay.autoscaling.providers.aws.names import HOOK, Names
from comfyrelay.autoscaling.provisioning.options import AwsOptions

# The worker has TERMINATION_SECONDS of its settings to finish or give back; the group waits longer, and is told sooner.
HOOK_SECONDS = 300

_SCRIPT = Template(r"""#!/bin/bash
# A worker of the $stage fleet $fleet. Made by `comfyrelay fleet user-data`.
set -euo pipefail
# nobody else may read what is written here, not even for a moment
umask 077

# the role may be there a few seconds later than the instance
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    secret=$$(aws ssm get-parameter --region "$region" --name "$secret_name" \
        --with-decryption --query Parameter.Value --output text) && break
    sleep 3
done
if [ -z "$${secret:-}" ]; then
    echo "comfyrelay: $secret_name cannot be read from Parameter Store" >&2
    exit 1
fi

install -d -m 700 /etc/comfyrelay
cat > /etc/comfyrelay/worker.env <<'END'
API_BASE_URL="$api_base_url"
FLEET_SLUG="$fleet"
FLEET_STAGE="$stage"
ASG_NAME="$group"
COMFYRELAY_WORKER_ASG_LIFECYCLE_HOOK="$hook"
COMFYRELAY_WORKER_COMFYUI_FOLDERS="$comfyui_folder"
COMFYRELAY_WORKER_DATA_DIR="/var/lib/comfyrelay-worker"
AWS_REGION="$region"
END
# quoted as systemd reads it
printf 'FLEET_SECRET="%s"\n' "$$(printf '%s' "$$secret" | sed 's/["\\$$`]/\\&/g')" >> /etc/comfyrelay/worker.env
unset secret

cat > /etc/systemd/system/comfyrelay-worker.service <<'END'
[Unit]
Description=ComfyRelay worker
After=network-online.target$after
Wants=network-online.target$after
# as often as it takes: an instance without a worker is paid for
StartLimitIntervalSec=0

[Service]
User=$user
EnvironmentFile=/etc/comfyrelay/worker.env
ExecStart=$command worker
# not `always`: it ends with 0 when it was told to leave, and would be told again after each start
Restart=on-failure
RestartSec=10
# longer than COMFYRELAY_WORKER_SHUTDOWN_SECONDS, so that it can give back what it cannot finish
TimeoutStopSec=60
StateDirectory=comfyrelay-worker

[Install]
WantedBy=multi-user.target
END

# A volume that was made of an image fetches each block when it is first read. This reads the models ahead, and steps
# back for whoever needs the disk now.
cat > /etc/systemd/system/comfyrelay-models.service <<'END'
[Unit]
Description=Read the models of ComfyUI once

[Service]
Type=oneshot
Nice=19
IOSchedulingClass=idle
ExecStart=/bin/bash -c 'find -L "$comfyui_folder/models" -type f -size +1M -print0 | xargs -0 -rP 4 -n 1 cat >/dev/null'
END
chmod 644 /etc/systemd/system/comfyrelay-worker.service /etc/systemd/system/comfyrelay-models.service

systemctl daemon-reload
systemctl start --no-block comfyrelay-models.service
systemctl enable --now comfyrelay-worker.service
""")


def user_data(names: Names, options: AwsOptions, *, region: str, api_base_url: str) -> str:
    return _SCRIPT.substitute(
        fleet=names.fleet,
        stage=names.stage,
        group=names.group,
        hook=HOOK,
        secret_name=names.secret,
        region=region,
        api_base_url=_for_environment_file(options.api_base_url or api_base_url),
        comfyui_folder=options.comfyui_folder,
        command=options.command,
        user=options.user,
        after=f" {options.comfyui_service}" if options.comfyui_service else "",
    )


def _for_environment_file(value: str) -> str:
    return "".join(f"\\{each}" if each in '"\\$`' else each for each in value)
