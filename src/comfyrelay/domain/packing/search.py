"""Search for the best number of processes: choose the number to measure next, and the best measured number."""

from collections.abc import Mapping

from comfyrelay.domain.packing.state import Measurement, PackingLimits, gain_of

Measured = Mapping[int, Measurement]


def gain_between(measured: Measured, size: int, base: int) -> float | None:
    """Return the gain of one measured number over another; `None` if no workflow ran with both."""
    return gain_of(measured[size].spans, measured[base].spans, size=size, base=base)


def best_count(measured: Measured, limits: PackingLimits) -> int:
    """Return the best measured number. A larger number must gain at least `min_gain` over the best smaller one."""
    best, *larger = sorted(measured)
    for count in larger:
        gain = gain_between(measured, count, best)
        if gain is not None and gain >= limits.min_gain:
            best = count
    return best


def best_below(measured: Measured, count: int, limits: PackingLimits) -> int | None:
    """Return the best of the measured numbers below this one."""
    smaller = {number: one for number, one in measured.items() if number < count}
    return best_count(smaller, limits) if smaller else None


def is_growing(measured: Measured, limits: PackingLimits) -> bool:
    """Whether more processes have always gained so far."""
    return not measured or best_count(measured, limits) == max(measured)


def next_count(measured: Measured, limits: PackingLimits, *, floor: int, largest: int) -> int | None:
    """Return the number to measure next, or `None` if the search is over.

    The number grows to `largest` as long as that gains. Then the search halves the gaps around the best number.
    """
    best = best_count(measured, limits)
    below = max((count for count in measured if count < best), default=None)
    above = min((count for count in measured if count > best), default=None)
    if below is None and best > floor:
        return max(best // 2, floor)
    if below is not None and _may_hide_a_better_one(measured, below, best, limits):
        return (below + best) // 2
    if above is None:
        return largest if largest > best else None
    # At best, a number in between could gain in proportion to its processes.
    return (best + above) // 2 if above - 1 >= best * (1 + limits.min_gain) else None


def _may_hide_a_better_one(measured: Measured, below: int, best: int, limits: PackingLimits) -> bool:
    """Whether a number between `below` and `best` could be better if it gained in proportion to its processes."""
    gain = gain_between(measured, best, below)
    return best - below > 1 and gain is not None and (best - 1) / below >= (1 + gain) * (1 + limits.min_gain)


def unsure_count(measured: Measured, limits: PackingLimits, *, floor: int) -> int | None:
    """Return a number to measure again (at least `floor`) if a decisive comparison was close, otherwise `None`."""
    best = best_count(measured, limits)
    below = best_below(measured, best, limits)
    pairs = [(best, count) for count in measured if count > best] + ([(below, best)] if below is not None else [])
    for base, size in pairs:
        gain = gain_between(measured, size, base)
        if gain is None or not limits.min_gain - limits.unsure_gain < gain < limits.large_gain:
            continue
        is_close = abs(gain - limits.min_gain) < limits.uncertainty
        turns = limits.max_turns if is_close else limits.turns
        again = min((base, size), key=lambda count: measured[count].turns)
        if again >= floor and measured[again].turns < turns:
            return again
    return None
