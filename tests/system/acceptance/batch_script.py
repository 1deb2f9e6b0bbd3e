"""A user's batch script in plain Python, which knows ComfyUI's address but not ComfyRelay."""

import argparse
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

COMFYUI = os.environ.get("COMFYUI_BASE_URL", "http://127.0.0.1:8188")
# ComfyUI's folder, which contains `input` and `output`
HOME = Path(os.environ["COMFYUI_HOME"])


def ask(path: str, body: Any = None, *, timeout: float = 60) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(COMFYUI + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        print("HTTP", error.code, error.read().decode())
        raise


def finished(prompt_id: str) -> Any:
    while not (found := ask(f"/history/{prompt_id}").get(prompt_id)):
        time.sleep(0.05)
    if found["status"]["status_str"] != "success":
        [(_, why)] = [message for message in found["status"]["messages"] if message[0] == "execution_error"]
        sys.exit(f"Error: {why['node_type']} failed: {why['exception_message']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--profile", "--template-api", "--input-subdir", "--positive", "--negative"):
        parser.add_argument(name)
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--randomize-seed", action="store_true")
    arguments = parser.parse_args()
    template = json.loads(Path(arguments.template_api).read_text())
    images = sorted((HOME / "input" / arguments.input_subdir).glob("*.png"))
    print(f"profile {arguments.profile}, {len(images)} images", file=sys.stderr)
    todo = [image for image in images for _ in range(arguments.tries)]
    for number, image in enumerate(todo, start=1):
        print(f"[{number}/{len(todo)}] {image.name}")
        for node in template.values():
            if node["class_type"] == "LoadImage":
                node["inputs"]["image"] = f"{arguments.input_subdir}/{image.name}"
            if "seed" in node["inputs"]:
                chosen = random.randrange(2**32) if arguments.randomize_seed else arguments.seed
                node["inputs"]["seed"] = node["inputs"]["seed"] if chosen is None else chosen
                print("seed:", node["inputs"]["seed"])
        prompt_id = ask("/prompt", {"prompt": template, "client_id": "me"}, timeout=arguments.timeout)["prompt_id"]
        if arguments.wait:
            for outputs in finished(prompt_id)["outputs"].values():
                for file in outputs.get("images", []):
                    print("Saved video:", HOME / file["type"] / file["subfolder"] / file["filename"])


main()
