"""Plot machine-hours against waiting time, one mark per policy."""

from collections.abc import Sequence
from html import escape
from math import ceil, log10

from comfyrelay.autoscaling.simulation.summary import CLAIRVOYANT, SimulationSummary

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 66, 60
# Approximate width of a letter and height of a line.
LETTER, LINE = 7.2, 15.0
COLOURS = {
    CLAIRVOYANT: "#6b7280",
    "reference": "#b91c1c",
    "cheap": "#15803d",
    "balanced": "#1d4ed8",
    "fast": "#7e22ce",
}


def trade_off(found: Sequence[SimulationSummary], title: str, subtitle: str) -> str:
    """Return an SVG. The line joins our policies from the cheapest to the fastest."""
    most_hours = _round_up(max((each.machine_hours for each in found), default=1.0))
    most_wait = _round_up(max((each.wait_p95 for each in found), default=1.0))

    def x(hours: float) -> float:
        return LEFT + hours / most_hours * (WIDTH - LEFT - RIGHT)

    def y(wait: float) -> float:
        return HEIGHT - BOTTOM - wait / most_wait * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="28" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT}" y="48" fill="#4b5563">{escape(subtitle)}</text>',
    ]
    for step in range(6):
        hours, wait = most_hours * step / 5, most_wait * step / 5
        parts += [
            f'<line x1="{x(hours):.1f}" y1="{TOP}" x2="{x(hours):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e5e7eb"/>',
            f'<text x="{x(hours):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{hours:g}</text>',
            f'<line x1="{LEFT}" y1="{y(wait):.1f}" x2="{WIDTH - RIGHT}" y2="{y(wait):.1f}" stroke="#e5e7eb"/>',
            f'<text x="{LEFT - 8}" y="{y(wait) + 4:.1f}" text-anchor="end">{wait:g}</text>',
        ]
    parts += [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 16}" text-anchor="middle">machine-hours</text>',
        f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">wait, p95, in seconds</text>',
    ]
    ours = sorted(
        (each for each in found if each.policy in ("cheap", "balanced", "fast")), key=lambda each: each.machine_hours
    )
    if len(ours) > 1:
        points = " ".join(f"{x(our.machine_hours):.1f},{y(our.wait_p95):.1f}" for our in ours)
        parts.append(f'<polyline points="{points}" fill="none" stroke="#9ca3af" stroke-dasharray="4 3"/>')
        key = "dashed: what our policies offer"
        parts += [
            f'<line x1="{WIDTH - RIGHT - LETTER * len(key) - 40:.1f}" y1="44" '
            f'x2="{WIDTH - RIGHT - LETTER * len(key) - 8:.1f}" y2="44" stroke="#9ca3af" stroke-dasharray="4 3"/>',
            f'<text x="{WIDTH - RIGHT}" y="48" text-anchor="end" fill="#4b5563">{key}</text>',
        ]
    taken: list[tuple[float, float, float]] = []
    for each in found:
        colour = COLOURS.get(each.policy, "#111827")
        at = f'cx="{x(each.machine_hours):.1f}" cy="{y(each.wait_p95):.1f}"'
        label = f"{each.policy}: {each.wait_p95:.0f} s, {each.machine_hours:.0f} h"
        parts += [
            f'<circle {at} r="6" fill="{colour}"><title>{escape(label)}</title></circle>',
            _label(label, x(each.machine_hours), y(each.wait_p95), colour, taken),
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(text: str, x: float, y: float, colour: str, taken: list[tuple[float, float, float]]) -> str:
    """Place a label next to its mark, inside the frame and without overlaps."""
    wide = LETTER * len(text)
    left = x + 10 if x + 10 + wide <= WIDTH - RIGHT else x - 10 - wide
    left = max(LEFT + 4.0, min(left, WIDTH - RIGHT - wide))
    places = [
        at
        for step in range(12)
        for at in (y - 6 - step * LINE, y - 6 + step * LINE)
        if TOP + LINE <= at <= HEIGHT - BOTTOM - 4
    ]
    free = (
        at
        for at in places
        if all(abs(at - there) >= LINE or left + wide < begin or left > end for begin, end, there in taken)
    )
    top = next(free, places[0] if places else TOP + LINE)
    taken.append((left, left + wide, top))
    return f'<text x="{left:.1f}" y="{top:.1f}" fill="{colour}">{escape(text)}</text>'


def _round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten, or fifths between: an axis with round steps."""
    if value <= 0:
        return 1.0
    power = 10.0 ** ceil(log10(value) - 1)
    return float(next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15) if step * power >= value))
