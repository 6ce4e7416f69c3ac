"""Charts, as SVG that stands in a page: no script, no font and no picture from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from html import escape

from waystation.history.report.figures import Heat, Line

#: Told apart by those who see few colours, too.
COLOURS = ("#2563a8", "#d1702b", "#3d8f5f", "#8a5aa8", "#b03a48", "#6b7280")
_DASHES = ("", ' stroke-dasharray="7 3"', ' stroke-dasharray="2 2"', "", "", "")
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 58, 12, 14, 28
#: Room for the names of rows, as long as the longest that is not cut.
_NAMES = 190
#: Hours apart of times that are written below a chart.
_STEPS_SECONDS = (5, 15, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 86_400, 7 * 86_400)
_TICKS_MAX = 9


class Axis:
    """Times from left to right."""

    def __init__(self, begin: datetime, slots: int, slot_seconds: int, *, left: int) -> None:
        self.begin = begin
        self.seconds = slots * slot_seconds
        self.slot_seconds = slot_seconds
        self.left = left

    def x(self, seconds: float) -> float:
        """Where a time is."""
        return self.left + seconds / self.seconds * (_WIDTH - self.left - _RIGHT)

    def marks(self, y: float) -> Iterator[str]:
        """Times, written below."""
        step = next(
            (each for each in _STEPS_SECONDS if self.seconds / each <= _TICKS_MAX),
            math.ceil(self.seconds / _TICKS_MAX / 86_400) * 86_400,
        )
        first = -self.begin.timestamp() % step
        form = "%d %b" if step >= 86_400 else "%H:%M" if step >= 60 else "%H:%M:%S"
        for number in range(int((self.seconds - first) // step) + 1):
            at = first + number * step
            text = (self.begin + timedelta(seconds=at)).strftime(form)
            x = f"{self.x(at):.1f}"
            yield f'<line class="tick" x1="{x}" x2="{x}" y1="{y}" y2="{y + 4}"/>'
            yield f'<text class="axis" x="{x}" y="{y + 18}" text-anchor="middle">{text}</text>'


def line_chart(
    title: str, lines: Mapping[str, Line], axis: Axis, *, unit: str, slots: int, gaps_are_zero: bool
) -> str:
    """Lines over time; a slot without a value is 0, or interrupts the line."""
    height = 220
    base = height - _BOTTOM
    top = nice(max((value for line in lines.values() for value in line.values()), default=0.0))

    def y(value: float) -> float:
        return base - value / top * (base - _TOP)

    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text class="axis" x="{_LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{short(v)}</text>'
        for v in (top * each / 4 for each in range(5))
    ]
    parts += axis.marks(base)
    # Dashed, so that one that lies upon another is seen, also without colours.
    for colour, dash, line in zip(COLOURS, _DASHES, lines.values(), strict=False):
        for run in _runs(line, slots, gaps_are_zero=gaps_are_zero):
            points = [(axis.x((at + 0.5) * axis.slot_seconds), y(value)) for at, value in run]
            drawn = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            if len(points) == 1:
                (px, py) = points[0]
                parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{colour}"/>')
            else:
                parts.append(f'<polyline points="{drawn}" stroke="{colour}"{dash}/>')
    return _figure(title, height, parts, legend(list(lines), unit))


def heat_map(
    title: str, heat: Heat, begin: datetime, *, unit: str, share: bool, colour: str
) -> str:
    """A row for each thing, a cell for each time; the darker, the more."""
    left, cell_height = _NAMES, 18
    height = _TOP + cell_height * len(heat.rows) + _BOTTOM
    axis = Axis(begin, heat.slots, heat.slot_seconds, left=left)
    most = 1.0 if share else max((v for _, row in heat.rows for v in row.values()), default=1.0)
    parts = []
    for number, (name, cells) in enumerate(heat.rows):
        top = _TOP + number * cell_height
        shown = name if len(name) <= 22 else f"{name[:21]}…"
        parts.append(_row_name(shown, left, top + 13))
        for at, value in cells.items():
            x = axis.x(at * heat.slot_seconds)
            width = max(1.0, axis.x((at + 1) * heat.slot_seconds) - x - 0.6)
            # The square root: a small share is seen, too.
            strength = 0.06 + 0.94 * math.sqrt(value / most) if most else 0.06
            when = (begin + timedelta(seconds=at * heat.slot_seconds)).strftime("%d %b %H:%M:%S")
            told = f"{value:.1%}" if share else short(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{cell_height - 2}"'
                f' fill="{colour}" fill-opacity="{strength:.2f}">'
                f"<title>{escape(name)}, {when}: {told} {escape(unit)}</title></rect>"
            )
    parts += axis.marks(_TOP + cell_height * len(heat.rows))
    return _figure(title, height, parts, "")


def bar_chart(title: str, bars: Mapping[str, float], *, colour: str) -> str:
    """Bars from the left, with their numbers."""
    left, bar_height = _NAMES, 24
    height = _TOP + bar_height * len(bars) + 6
    most = max(bars.values(), default=0) or 1
    parts = []
    for number, (name, value) in enumerate(bars.items()):
        top = _TOP + number * bar_height
        width = value / most * (_WIDTH - left - 110)
        parts.append(
            f"{_row_name(name, left, top + 14)}"
            f'<rect x="{left}" y="{top}" width="{max(width, 1):.1f}" height="{bar_height - 7}"'
            f' fill="{colour}" fill-opacity="{1 if value else 0.25}"/>'
            f'<text class="value" x="{left + max(width, 1) + 8:.1f}" y="{top + 14}">'
            f"{value:,.0f}</text>"
        )
    return _figure(title, height, parts, "")


def legend(names: list[str], unit: str) -> str:
    """Which colour is which line."""
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name in zip(COLOURS, names, strict=False)
    )
    return f'<div class="legend">{keys}<em>{escape(unit)}</em></div>'


def nice(value: float) -> float:
    """The next round number: what an axis ends with."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        each * power for each in (1, 2, 3, 4, 5, 6, 8, 10) if each * power >= value * 0.9999
    )


def short(value: float) -> str:
    """A number in few letters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _runs(line: Line, slots: int, *, gaps_are_zero: bool) -> Iterator[list[tuple[int, float]]]:
    """Points that are joined."""
    if gaps_are_zero:
        if line:
            yield [(at, line.get(at, 0.0)) for at in range(slots)]
        return
    run: list[tuple[int, float]] = []
    for at in sorted(line):
        # Up to here it is one line: what is rare would else be dots alone.
        if run and at - run[-1][0] > max(2, slots // 20):
            yield run
            run = []
        run.append((at, line[at]))
    if run:
        yield run


def _row_name(name: str, left: int, y: int) -> str:
    return f'<text class="axis" x="{left - 8}" y="{y}" text-anchor="end">{escape(name)}</text>'


def _figure(title: str, height: int, parts: list[str], below: str) -> str:
    label = escape(title)
    return (
        f'<figure><figcaption>{label}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{label}">{"".join(parts)}</svg>{below}</figure>'
    )
