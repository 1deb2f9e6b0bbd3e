"""A worker written only from `docs/reference/api-worker.md`.

It uses no ComfyRelay code, one thread, and no heartbeats.
"""

import base64
import hashlib
import time
from datetime import UTC, datetime
from typing import Any

import requests

# The smallest valid picture.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+ip1sAAAAASUVORK5CYII="
)
KEY = "a key that this worker keeps"


class MinimalWorker:
    def __init__(self, url: str, *, name: str, fleet: str, secret: str) -> None:
        self.url = url
        self.name = name
        self.fleet = fleet
        self.secret = secret
        self.token = ""

    def call(self, call: str, **body: Any) -> Any:
        """Return the data of the response, or raise `requests.HTTPError`."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {"X-Fleet-Secret": self.secret}
        answer = requests.post(f"{self.url}/api/worker/{call}", json=body, headers=headers, timeout=60)
        answer.raise_for_status()
        return answer.json()["data"]

    def register(self) -> Any:
        self.token = ""
        answer = self.call("register", worker_id=self.name, fleet_slug=self.fleet, registration_key=KEY)
        self.token = answer["token"]
        return answer

    def poll(self, **more: Any) -> Any:
        """Wait for the next job."""
        while True:
            job = self.call("poll", worker_id=self.name, wait_seconds=10, **more)["job"]
            if job is not None:
                return job

    def work(self, job: Any) -> None:
        """Download the input, run for longer than the lease, and upload the output."""
        payload = job["input_payload"]
        assert payload["workflow"]
        for asset in payload["assets"]:
            requests.get(asset["download_url"], timeout=60).raise_for_status()
        over = datetime.fromisoformat(job["lease_expires_at"]) - datetime.now(UTC)
        time.sleep(max(0.0, over.total_seconds()) + 0.5)
        requests.put(job["output_url"], data=PICTURE, headers=job["output_headers"], timeout=60).raise_for_status()

    def complete(self, job: Any) -> str:
        output = {
            "size": len(PICTURE),
            "mime_type": job["input_payload"]["output_mime_type"],
            "sha256": hashlib.sha256(PICTURE).hexdigest(),
        }
        return str(self.call("complete", **lease(job), output=output)["status"])


def lease(job: Any) -> dict[str, Any]:
    return {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
