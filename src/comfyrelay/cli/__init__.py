"""The `comfyrelay` command."""

import gc

# Most objects of a command are modules, and most objects of a server are parked polls. Both live long, and scanning
# them for garbage takes a sixth of the time of `jobs`.
gc.set_threshold(100_000, 50, 100)
