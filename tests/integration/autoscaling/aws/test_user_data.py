"""The boot script of an instance."""

import configparser
import os
import re
import subprocess
from pathlib import Path

import pytest

from comfyrelay.autoscaling.providers.aws.names import Names
from comfyrelay.autoscaling.provisioning.options import AwsOptions, read_options
from comfyrelay.autoscaling.provisioning.user_data import HOOK_SECONDS, user_data
from comfyrelay.worker.settings import WorkerSettings

SECRET = 'a "quoted" $HOME `id` \\ #%'
# Fakes of the programs that the script calls; `aws` returns the secret on its third call.
PROGRAMS = {
    "aws": 'echo "$@" >> "$ROOT/aws.log"; [ $(wc -l < "$ROOT/aws.log") -gt 2 ] && printf %s "$SECRET"',
    "sleep": "true",
    "systemctl": 'echo "$@" >> "$ROOT/systemctl.log"',
}


def script(**options: object) -> str:
    return user_data(
        Names("video", "production"),
        read_options(options, {}),
        region="eu-west-1",
        api_base_url="https://relay.example.com",
    )


def run(folder: Path, text: str, *, secret: str = SECRET) -> subprocess.CompletedProcess[str]:
    """Run the script with `folder` as the root of its files."""
    for name, body in PROGRAMS.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    (folder / "etc" / "systemd" / "system").mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        ["bash", "-c", text.replace(" /etc/", f" {folder}/etc/")],
        env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "ROOT": str(folder), "SECRET": secret},
        capture_output=True,
        text=True,
        check=False,
    )


def environment(folder: Path) -> dict[str, str]:
    """The environment file, as systemd reads it."""
    found = {}
    for line in (folder / "etc" / "comfyrelay" / "worker.env").read_text().splitlines():
        name, _, value = line.partition("=")
        assert value[0] == value[-1] == '"'
        found[name] = re.sub(r"\\(.)", r"\1", value[1:-1])
    return found


@pytest.mark.parametrize("options", [{}, {"comfyui_service": None, "comfyui_folder": "/srv/comfy", "user": "gpu"}])
def test_script_is_valid_bash(options: dict[str, object]) -> None:
    checked = subprocess.run(["bash", "-n"], input=script(**options), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_worker_gets_its_settings_and_any_secret(tmp_path: Path) -> None:
    ran = run(tmp_path, script())

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    found = environment(tmp_path)
    assert found["FLEET_SECRET"] == SECRET
    assert found["ASG_NAME"] == "asg-production-video"
    assert found["COMFYRELAY_WORKER_ASG_LIFECYCLE_HOOK"] == "comfyrelay-drain"
    assert (found["API_BASE_URL"], found["FLEET_SLUG"], found["FLEET_STAGE"]) == (
        "https://relay.example.com",
        "video",
        "production",
    )


def test_secret_is_read_with_retries_into_a_file_of_root(tmp_path: Path) -> None:
    run(tmp_path, script())

    asked = (tmp_path / "aws.log").read_text().splitlines()
    assert len(asked) == 3
    assert "ssm get-parameter --region eu-west-1 --name /comfyrelay/production/video/fleet-secret" in asked[0]
    file = tmp_path / "etc" / "comfyrelay" / "worker.env"
    assert file.stat().st_mode & 0o077 == 0


def test_no_worker_starts_without_the_secret(tmp_path: Path) -> None:
    ran = run(tmp_path, script(), secret="")

    assert ran.returncode == 1
    assert "cannot read /comfyrelay/production/video/fleet-secret from Parameter Store" in ran.stderr
    assert not (tmp_path / "systemctl.log").exists()


def test_variables_are_settings_of_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from comfyrelay.worker.settings import load_worker_settings  # noqa: PLC0415 - reads the environment

    run(tmp_path, script())
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)

    settings: WorkerSettings = load_worker_settings()

    assert settings.asg_name == "asg-production-video"
    assert settings.asg_lifecycle_hook == "comfyrelay-drain"
    assert settings.fleet_slug == "video"
    # The group must wait longer than the worker needs to stop.
    assert settings.termination_seconds < HOOK_SECONDS


def test_worker_is_restarted_on_failure_and_models_are_read_in_parallel(tmp_path: Path) -> None:
    run(tmp_path, script(comfyui_folder="/srv/comfy", user="gpu", command="/srv/bin/comfyrelay"))

    units = tmp_path / "etc" / "systemd" / "system"
    worker, models = configparser.RawConfigParser(strict=False), configparser.RawConfigParser(strict=False)
    worker.read(units / "comfyrelay-worker.service")
    models.read(units / "comfyrelay-models.service")
    assert worker["Service"]["Restart"] == "on-failure"
    assert worker["Unit"]["StartLimitIntervalSec"] == "0"
    assert worker["Service"]["ExecStart"] == "/srv/bin/comfyrelay worker"
    assert worker["Service"]["User"] == "gpu"
    assert "comfyui.service" in worker["Unit"]["After"]
    assert models["Service"]["IOSchedulingClass"] == "idle"
    assert "/srv/comfy/models" in models["Service"]["ExecStart"]
    assert (tmp_path / "systemctl.log").read_text().splitlines() == [
        "daemon-reload",
        "start --no-block comfyrelay-models.service",
        "enable --now comfyrelay-worker.service",
    ]


def test_models_are_read_completely(tmp_path: Path) -> None:
    (tmp_path / "models" / "deep er").mkdir(parents=True)
    model = tmp_path / "models" / "deep er" / "one model.safetensors"
    model.write_bytes(bytes(2 * 1024 * 1024))
    log = tmp_path / "cat.log"
    program = tmp_path / "cat"
    program.write_text(f'#!/bin/bash\necho "$1" >> "{log}"\n')
    program.chmod(0o755)
    text = user_data(
        Names("video", "production"),
        AwsOptions.model_construct(comfyui_folder=str(tmp_path)),
        region="eu-west-1",
        api_base_url="https://relay.example.com",
    )
    command = re.search(r"^ExecStart=/bin/bash -c '(.*)'$", text, re.MULTILINE)
    assert command is not None

    subprocess.run(["bash", "-c", command[1]], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True)

    assert log.read_text().splitlines() == [str(model)]
