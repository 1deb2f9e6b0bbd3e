"""`make audit` distinguishes known vulnerabilities from a failed check."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.paths import ROOT
from tests.support.world import PATIENCE_SECONDS

NAME, VERSION = "demo", "1.0"
HASH = f"--hash=sha256:{'0' * 64}"
ADVISORY = {
    "id": "GHSA-demo",
    "summary": "It does too much.",
    "affected": [
        {
            "package": {"name": NAME, "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
            "versions": [VERSION],
        }
    ],
}


@contextmanager
def advisories(*known: dict[str, Any]) -> Iterator[str]:
    """Yield a simulated OSV that returns these advisories for every package."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"vulns": known} if known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def audit(folder: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the script over a separate lock file with these extra lines."""
    script = folder / "audit.py"
    script.write_text((ROOT / "requirements" / "audit.py").read_text("utf-8"), "utf-8")
    (folder / "demo.txt").write_text("\n".join([f"{NAME}=={VERSION} {HASH}", *more]), "utf-8")
    return subprocess.run(
        [sys.executable, str(script), "--osv-url", url, "--cache-dir", str(folder / "cache")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_vulnerable_version_is_named_with_its_fix(tmp_path: Path) -> None:
    with advisories(ADVISORY) as url:
        done = audit(tmp_path, url)
    assert done.returncode == 1, done.stderr
    assert "demo 1.0: GHSA-demo, fixed in 1.1" in done.stdout
    assert "1 packages, 1 advisories." in done.stdout


def test_audit_without_advisories_succeeds(tmp_path: Path) -> None:
    with advisories() as url:
        done = audit(tmp_path, url)
    assert (done.returncode, done.stdout) == (0, "1 packages, 0 advisories.\n"), done.stderr


def test_unreachable_advisories_fail_the_audit(tmp_path: Path) -> None:
    # the simulator's port is closed
    with advisories() as url:
        pass
    done = audit(tmp_path, url)
    assert done.returncode == 3
    assert done.stderr.endswith("Nothing was checked: run this on a machine with internet access.\n")


def test_unchecked_package_is_named_and_fails_the_audit(tmp_path: Path) -> None:
    with advisories() as url:
        done = audit(tmp_path, url, f"other @ https://example.com/other.zip {HASH}")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("other: not checked, ")
    assert done.stdout.endswith("1 packages, 0 advisories, 1 not checked.\n")


def test_pip_audit_error_is_passed_on(tmp_path: Path) -> None:
    with advisories() as url:
        done = audit(tmp_path, url, "other==1.0")
    assert done.returncode == 1
    assert "other" in done.stderr
    assert "hash" in done.stderr
    assert "cannot be reached" not in done.stderr
