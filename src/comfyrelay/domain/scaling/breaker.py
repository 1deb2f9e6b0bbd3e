"""When machines are launched and never become workers, launching more only costs money."""

from comfyrelay.domain.scaling.snapshot import SeenFleet

PAUSE_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 3600.0


def pause_left(fleet: SeenFleet) -> float | None:
    """How long nothing is launched because too many boots in a row failed; `None` when too few did. 0 when the pause is
    over, and one machine may show whether it works again. Each further failure doubles the pause."""
    beyond = fleet.failed_boots - fleet.scaling.limits.failed_boots
    if beyond < 0 or fleet.failed_boots == 0:
        return None
    # the exponent is bounded, so that no number of failures is too large
    pause = min(PAUSE_SECONDS * (1 << min(beyond, 10)), LONGEST_PAUSE_SECONDS)
    return max(0.0, pause - (fleet.failed_boot_seconds_ago or 0.0))
