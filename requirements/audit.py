"""`make audit`: check the pinned packages for published advisories.

Exit codes: 0 if there are none, 1 if there are some or a package was not checked, 3 if the service cannot be reached.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

FOUND, UNREACHABLE = 1, 3
# How pip-audit and its HTTP library report an unreachable service.
_UNREACHABLE_ERROR = re.compile(
    r"Could not connect|requests\.exceptions\.(\w*Connection\w*|\w*Timeout|ProxyError|SSLError)|HTTPError: 5\d\d"
)
HERE = Path(__file__).parent


def audit(locks: list[Path], options: list[str]) -> int:
    files = [word for lock in locks for word in ("--requirement", str(lock))]
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off"]
    done = subprocess.run(
        [*command, "--vulnerability-service=osv", "--format=json", *files, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        # pip-audit also exits with 1 if it finds advisories
        return _report_failure(done.stderr.strip())
    skipped = {package["name"]: package["skip_reason"] for package in packages if "skip_reason" in package}
    for name, reason in sorted(skipped.items()):
        print(f"{name}: not checked, {reason}")
    known = {
        (package["name"], package["version"], advisory["id"]): advisory
        for package in packages
        for advisory in package.get("vulns", [])
    }
    for (name, version, id_), advisory in sorted(known.items()):
        print(f"{name} {version}: {id_}, fixed in {', '.join(advisory['fix_versions']) or 'no version yet'}")
    checked = {package["name"] for package in packages if "skip_reason" not in package}
    print(f"{len(checked)} packages, {len(known)} advisories{f', {len(skipped)} not checked' if skipped else ''}.")
    return FOUND if known or skipped else 0


def _report_failure(text: str) -> int:
    if _UNREACHABLE_ERROR.search(text) is None:
        print(text or "pip-audit failed without a message.", file=sys.stderr)
        return FOUND
    print(text.splitlines()[-1][:500], file=sys.stderr)
    print(
        "The advisory service cannot be reached. Nothing was checked: run this on a machine with internet access.",
        file=sys.stderr,
    )
    return UNREACHABLE


if __name__ == "__main__":
    sys.exit(audit(sorted(HERE.glob("*.txt")), sys.argv[1:]))
