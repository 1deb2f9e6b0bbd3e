"""Hold what is pinned against the advisories that are public: `make audit`.

Exit codes: 0 nothing is known against any of it, 1 something is, or some of it was not checked, 3 the advisories cannot
be reached from here.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

FOUND, UNREACHABLE = 1, 3
# How pip-audit, and the library that it calls with, speak of a service that does not answer.
_AWAY = re.compile(
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
        # pip-audit ends with 1 for these as well as for what it finds
        return _not_done(done.stderr.strip())
    skipped = {each["name"]: each["skip_reason"] for each in packages if "skip_reason" in each}
    for name, why in sorted(skipped.items()):
        print(f"{name}: not checked, {why}")
    known = {
        (each["name"], each["version"], found["id"]): found for each in packages for found in each.get("vulns", [])
    }
    for (name, version, id_), found in sorted(known.items()):
        print(f"{name} {version}: {id_}, mended in {', '.join(found['fix_versions']) or 'no version yet'}")
    checked = {each["name"] for each in packages if "skip_reason" not in each}
    print(f"{len(checked)} packages, {len(known)} advisories{f', {len(skipped)} not checked' if skipped else ''}.")
    return FOUND if known or skipped else 0


def _not_done(words: str) -> int:
    if _AWAY.search(words) is None:
        print(words or "pip-audit ended without a word.", file=sys.stderr)
        return FOUND
    print(words.splitlines()[-1][:500], file=sys.stderr)
    print("The advisories cannot be reached from here: nothing was checked. Run it where they can.", file=sys.stderr)
    return UNREACHABLE


if __name__ == "__main__":
    sys.exit(audit(sorted(HERE.glob("*.txt")), sys.argv[1:]))
