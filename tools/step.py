"""Run a command as one step: print one line, and the whole output only if the command fails.

python tools/step.py "Build the page" COMMAND [ARGUMENT ...]
"""

import subprocess
import sys


def run_step(title: str, command: list[str]) -> int:
    print(f"{title} …", end="", flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        print(f" failed: {command[0]}: {error.strerror}")
        return 127
    print(" done" if done.returncode == 0 else f" failed ({done.returncode}):", flush=True)
    if done.returncode:
        sys.stdout.buffer.write(done.stdout)
        sys.stdout.buffer.flush()
    return done.returncode


if __name__ == "__main__":
    sys.exit(run_step(sys.argv[1], sys.argv[2:]))
