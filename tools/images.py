"""Build the images of `deploy/docker` from the wheel in `dist/`, start each one, and print their sizes.

    python tools/images.py [--program podman] [--base IMAGE] [OPTION ...]

Needs Docker or Podman. The containers have a read-only root file system, no capabilities and no network. Each must
become healthy and stop with exit code 0 on SIGTERM, and the desk must make a picture. `--base` replaces the base image,
for a machine that cannot pull it; further options are passed to the build.
"""

import argparse
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS, STOP_SECONDS = 180, 60
LIMITS = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")
SECRET = "0123456789abcdef0123456789abcdef"
# Settings that a container needs to start alone.
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    "desk": {},
    "server": {
        "COMFYRELAY_FLEET_SECRETS": f'{{"production": ["{SECRET}"]}}',
        "COMFYRELAY_SIGNING_SECRETS": f'["{SECRET}"]',
    },
    "worker": {
        "API_BASE_URL": "http://127.0.0.1:8420",
        "COMFYUI_BASE_URL": "http://127.0.0.1:8188",
        "COMFYRELAY_WORKER_METADATA_URL": "off",
        "FLEET_SECRET": SECRET,
        "FLEET_SLUG": "gpus",
    },
}
SAMPLE = "/var/lib/comfyrelay/inputs/examples/sample.png"
PICTURE = ("comfyrelay", "run", "invert-image", "--input", SAMPLE, "--out", "/tmp/made")


class Images:
    def __init__(self, program: str, release: str) -> None:
        self._program = program
        self._release = release

    def build(self, name: str, options: Sequence[str]) -> str:
        """Build an image and return its name."""
        image = f"comfyrelay-{name}:{self._release}"
        # Podman's own format has no health checks.
        form = ("--format=docker",) if self._program == "podman" else ()
        file = ("--file", f"deploy/docker/{name}.Dockerfile")
        self._call("build", *form, *file, "--tag", image, *options, ".")
        return image

    def size(self, image: str) -> int:
        return int(self._call("image", "inspect", "--format={{.Size}}", image, is_quiet=True))

    def check(self, name: str, image: str) -> str:
        started = time.monotonic()
        with self._running(name, image) as container:
            while not self._is_healthy(container):
                if self._state(container, "Running") != "true":
                    raise SystemExit(f"{image} stopped before it was healthy.")
                if time.monotonic() - started > START_SECONDS:
                    raise SystemExit(f"{image} was not healthy after {START_SECONDS} s.")
                time.sleep(0.5)
            healthy = time.monotonic()
            user = self._exec(container, "id", "-u").strip()
            assert user == "10001", f"{image} runs as user {user}."
            if name == "desk":
                self._exec(container, *PICTURE)
            asked = time.monotonic()
            self._call("stop", "--time", str(STOP_SECONDS), container, is_quiet=True)
            code = self._state(container, "ExitCode")
            assert code == "0", f"{image} ended with {code}."
            stopped = time.monotonic() - asked
        return f"healthy after {healthy - started:.1f} s, stopped by SIGTERM in {stopped:.1f} s"

    @contextmanager
    def _running(self, name: str, image: str) -> Iterator[str]:
        container = f"comfyrelay-check-{name}"
        variables = [f"--env={key}={value}" for key, value in ENVIRONMENT[name].items()]
        self._call("run", "--detach", f"--name={container}", *LIMITS, *variables, image, is_quiet=True)
        try:
            yield container
        except BaseException:
            subprocess.run((self._program, "logs", container), check=False)
            raise
        finally:
            self._call("rm", "--force", "--volumes", container, is_quiet=True)

    def _is_healthy(self, container: str) -> bool:
        if self._program == "podman":
            # Podman runs health checks itself only under systemd.
            words = ("podman", "healthcheck", "run", container)
            return subprocess.run(words, check=False, capture_output=True).returncode == 0
        return self._state(container, "Health.Status") == "healthy"

    def _state(self, container: str, field: str) -> str:
        return self._call("inspect", f"--format={{{{.State.{field}}}}}", container, is_quiet=True).strip()

    def _exec(self, container: str, *words: str) -> str:
        return self._call("exec", container, *words, is_quiet=True)

    def _call(self, *words: str, is_quiet: bool = False) -> str:
        shown = subprocess.PIPE if is_quiet else None
        done = subprocess.run((self._program, *words), cwd=ROOT, stdout=shown, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"`{self._program} {' '.join(words)}` ended with {done.returncode}.\n{done.stdout or ''}")
        return done.stdout or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="IMAGE", help="the base image, instead of the one in the Dockerfiles")
    parser.add_argument("--program", choices=("docker", "podman"), default="docker")
    options, passed = parser.parse_known_args()
    if shutil.which(options.program) is None:
        raise SystemExit(f"{options.program} is not installed.")
    [wheel] = (ROOT / "dist").glob("*.whl")
    found = re.match(r"\d+\.\d+\.\d+", wheel.name.split("-")[1])
    assert found is not None
    if options.base:
        passed = [f"--build-arg=PYTHON_IMAGE={options.base}", *passed]
    images = Images(options.program, found[0])
    built = {name: images.build(name, passed) for name in ENVIRONMENT}
    for name, image in built.items():
        print(f"{image}: {images.size(image) / 1e6:.0f} MB, {images.check(name, image)}", flush=True)


if __name__ == "__main__":
    main()
