"""The `comfyrelay` command."""

import gc

# Most objects of a command belong to modules, and most objects of a server to parked polls. They live long, and
# scanning them for garbage takes a sixth of the time of `jobs`.
gc.set_threshold(100_000, 50, 100)
