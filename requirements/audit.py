"""Hold what is pinned against the advisories that are public: `make audit`.

Exit codes: 0 nothing is known against any of it, 1 something is, 3 the advisories cannot be reached from here.
"""

import json
import subprocess
import sys
from pathlib import Path

FOUND, UNREACHABLE = 1, 3
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
        # pip-audit ends with 1 for this as well as for what it finds
        print((done.stderr.strip().splitlines() or ["pip-audit said nothing."])[-1][:500], file=sys.stderr)
        print(
            "The advisories cannot be reached from here: nothing was checked. Run it where they can.", file=sys.stderr
        )
        return UNREACHABLE
    known = {
        (each["name"], each["version"], found["id"]): found for each in packages for found in each.get("vulns", [])
    }
    for (name, version, id_), found in sorted(known.items()):
        print(f"{name} {version}: {id_}, mended in {', '.join(found['fix_versions']) or 'no version yet'}")
    print(f"{len({each['name'] for each in packages})} packages, {len(known)} advisories.")
    return FOUND if known else 0


if __name__ == "__main__":
    sys.exit(audit(sorted(HERE.glob("*.txt")), sys.argv[1:]))
