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
    """Return an SVG. A line connects ComfyRelay's policies, from the cheapest to the fastest."""
    max_hours = _round_up(max((summary.machine_hours for summary in found), default=1.0))
    max_wait = _round_up(max((summary.wait_p95 for summary in found), default=1.0))

    def x(hours: float) -> float:
        return LEFT + hours / max_hours * (WIDTH - LEFT - RIGHT)

    def y(wait: float) -> float:
        return HEIGHT - BOTTOM - wait / max_wait * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="28" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT}" y="48" fill="#4b5563">{escape(subtitle)}</text>',
    ]
    for step in range(6):
        hours, wait = max_hours * step / 5, max_wait * step / 5
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
    ours = [summary for summary in found if summary.policy in ("cheap", "balanced", "fast")]
    ours.sort(key=lambda summary: summary.machine_hours)
    if len(ours) > 1:
        points = " ".join(f"{x(our.machine_hours):.1f},{y(our.wait_p95):.1f}" for our in ours)
        parts.append(f'<polyline points="{points}" fill="none" stroke="#9ca3af" stroke-dasharray="4 3"/>')
        key = "dashed: our policies"
        parts += [
            f'<line x1="{WIDTH - RIGHT - LETTER * len(key) - 40:.1f}" y1="44" '
            f'x2="{WIDTH - RIGHT - LETTER * len(key) - 8:.1f}" y2="44" stroke="#9ca3af" stroke-dasharray="4 3"/>',
            f'<text x="{WIDTH - RIGHT}" y="48" text-anchor="end" fill="#4b5563">{key}</text>',
        ]
    taken: list[tuple[float, float, float]] = []
    for summary in found:
        colour = COLOURS.get(summary.policy, "#111827")
        at_x, at_y = x(summary.machine_hours), y(summary.wait_p95)
        label = f"{summary.policy}: {summary.wait_p95:.0f} s, {summary.machine_hours:.0f} h"
        parts += [
            f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="6" fill="{colour}"><title>{escape(label)}</title></circle>',
            _label(label, at_x, at_y, colour, taken),
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(text: str, x: float, y: float, colour: str, taken: list[tuple[float, float, float]]) -> str:
    """Place a label next to its mark, inside the frame and without overlaps."""
    width = LETTER * len(text)
    left = x + 10 if x + 10 + width <= WIDTH - RIGHT else x - 10 - width
    left = max(LEFT + 4.0, min(left, WIDTH - RIGHT - width))
    tops = [y - 6 + sign * step * LINE for step in range(12) for sign in (-1, 1)]
    inside = [top for top in tops if TOP + LINE <= top <= HEIGHT - BOTTOM - 4]
    free = (
        top
        for top in inside
        if all(abs(top - other) >= LINE or left + width < start or left > end for start, end, other in taken)
    )
    top = next(free, inside[0] if inside else TOP + LINE)
    taken.append((left, left + width, top))
    return f'<text x="{left:.1f}" y="{top:.1f}" fill="{colour}">{escape(text)}</text>'


def _round_up(value: float) -> float:
    """Round up to a number that results in round steps on an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** ceil(log10(value) - 1)
    return float(next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15) if step * power >= value))
