"""SVG charts for a page without scripts, fonts or external files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from html import escape

from waystation.history.report.figures import Buckets, HeatMap, Line

#: Colours that people with colour blindness can distinguish.
COLOURS = ("#2563a8", "#d1702b", "#3d8f5f", "#8a5aa8", "#b03a48", "#6b7280")
_DASHES = tuple(
    f' stroke-dasharray="{each}"' if each else ""
    for each in ("", "7 3", "2 2", "10 3 2 3", "4 4", "1 3")
)
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 58, 12, 14, 28
#: Room for the names of rows, and the longest name that fits.
_NAMES, _NAME_LENGTH = 210, 32
#: Distances of two labels of the time axis.
_STEPS_SECONDS = (5, 15, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 86_400, 7 * 86_400)
_LABELS_MAX = 9
#: Half of the width of a label. A label that is nearer to the edge would be cut off.
_LABEL_HALF = 26
#: With fewer buckets, a line is level within each bucket, as the values are. Points in the middle
#: of a few wide buckets would show neither when a run began nor when it ended.
_LEVEL_BUCKETS_MAX = 40


class TimeAxis:
    """Time axis of a chart: converts buckets to x coordinates."""

    def __init__(self, buckets: Buckets, *, left: int = _LEFT) -> None:
        self.buckets = buckets
        self._seconds = buckets.count * buckets.seconds
        self._left = left

    def x(self, number: float) -> float:
        """Return the x coordinate at which a bucket begins."""
        return self._left + number / self.buckets.count * (_WIDTH - self._left - _RIGHT)

    def labels(self, y: float) -> Iterator[str]:
        """Yield ticks and times below a chart, at round times."""
        step = next(
            (each for each in _STEPS_SECONDS if self._seconds / each <= _LABELS_MAX),
            math.ceil(self._seconds / _LABELS_MAX / 86_400) * 86_400,
        )
        form = "%d %b" if step >= 86_400 else "%H:%M" if step >= 60 else "%H:%M:%S"
        start = self.buckets.start
        for at in range(round(-start.timestamp() % step), self._seconds + 1, step):
            text = (start + timedelta(seconds=at)).strftime(form)
            x = self.x(at / self.buckets.seconds)
            yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>'
            at_edge = x > _WIDTH - _LABEL_HALF
            anchor, x = ("end", _WIDTH - 1) if at_edge else ("middle", x)
            place = f'x="{x:.1f}" y="{y + 18}" text-anchor="{anchor}"'
            yield f'<text class="axis" {place}>{text}</text>'


def line_chart(
    title: str, lines: Mapping[str, Line], buckets: Buckets, *, unit: str, gaps_are_zero: bool
) -> str:
    """Draw lines over time. A bucket without a value is 0, or interrupts the line."""
    axis, height = TimeAxis(buckets), 220
    base = height - _BOTTOM
    top = nice(max((value for line in lines.values() for value in line.values()), default=0.0))

    def y(value: float) -> float:
        return base - value / top * (base - _TOP)

    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text class="axis" x="{_LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{short(v)}</text>'
        for v in (top * each / 4 for each in range(5))
    ]
    parts += axis.labels(base)
    is_level = buckets.count < _LEVEL_BUCKETS_MAX
    # Dashes show a line that lies upon another one, also without colours.
    for colour, dash, line in zip(COLOURS, _DASHES, lines.values(), strict=False):
        for run in _runs(line, buckets.count, gaps_are_zero=gaps_are_zero):
            points = _level_points(run) if is_level else [(at + 0.5, value) for at, value in run]
            drawn = " ".join(f"{axis.x(at):.1f},{y(value):.1f}" for at, value in points)
            if len(points) == 1:
                x, _, at_y = drawn.partition(",")
                parts.append(f'<circle cx="{x}" cy="{at_y}" r="2.5" fill="{colour}"/>')
            else:
                parts.append(f'<polyline points="{drawn}" stroke="{colour}"{dash}/>')
    return _figure(title, height, parts, _legend(list(lines), unit))


def heat_map(title: str, heat: HeatMap, *, unit: str, share: bool, colour: str) -> str:
    """Draw a row for each name and a cell for each bucket, the darker the higher the value."""
    cell_height = 18
    base = _TOP + cell_height * len(heat.rows)
    axis = TimeAxis(heat.buckets, left=_NAMES)
    most = 1.0 if share else max((v for row in heat.rows.values() for v in row.values()), default=0)
    parts = []
    for row, (name, cells) in enumerate(heat.rows.items()):
        top = _TOP + row * cell_height
        parts.append(_row_name(name, top + 13))
        for at, value in cells.items():
            x = axis.x(at)
            width = max(1.0, axis.x(at + 1) - x - 0.6)
            # The square root, because otherwise small shares would be invisible.
            strength = 0.06 + 0.94 * math.sqrt(value / most) if most else 0.06
            when = _moment(heat.buckets, at).strftime("%d %b %H:%M:%S")
            text = f"{value:.1%}" if share else short(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{cell_height - 2}"'
                f' fill="{colour}" fill-opacity="{strength:.2f}">'
                f"<title>{escape(name)}, {when}: {text} {escape(unit)}</title></rect>"
            )
    parts += axis.labels(base)
    return _figure(title, base + _BOTTOM, parts, "")


def bar_chart(title: str, bars: Mapping[str, float], *, colour: str) -> str:
    """Draw bars from the left, with their numbers."""
    bar_height = 24
    height = _TOP + bar_height * len(bars) + 6
    most = max(bars.values(), default=0) or 1
    parts = []
    for number, (name, value) in enumerate(bars.items()):
        top = _TOP + number * bar_height
        width = max(value / most * (_WIDTH - _NAMES - 110), 1)
        parts.append(
            f"{_row_name(name, top + 14)}"
            f'<rect x="{_NAMES}" y="{top}" width="{width:.1f}" height="{bar_height - 7}"'
            f' fill="{colour}" fill-opacity="{1 if value else 0.25}"/>'
            f'<text class="value" x="{_NAMES + width + 8:.1f}" y="{top + 14}">{value:,.0f}</text>'
        )
    return _figure(title, height, parts, "")


def nice(value: float) -> float:
    """Return the next round number, at which an axis ends."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        each * power for each in (1, 2, 3, 4, 5, 6, 8, 10) if each * power >= value * 0.9999
    )


def short(value: float) -> str:
    """Return a number with three digits and a unit prefix."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _runs(line: Line, count: int, *, gaps_are_zero: bool) -> Iterator[list[tuple[int, float]]]:
    """Yield the points that one line joins."""
    if gaps_are_zero:
        if line:
            yield [(at, line.get(at, 0.0)) for at in range(count)]
        return
    run: list[tuple[int, float]] = []
    for at in sorted(line):
        # A short gap does not interrupt the line; otherwise rare events would be single dots.
        if run and at - run[-1][0] > max(2, count // 20):
            yield run
            run = []
        run.append((at, line[at]))
    if run:
        yield run


def _level_points(run: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the points of a line that is level within each bucket."""
    return [(at + side, value) for at, value in run for side in (0, 1)]


def _moment(buckets: Buckets, number: int) -> datetime:
    return buckets.start + timedelta(seconds=number * buckets.seconds)


def _legend(names: list[str], unit: str) -> str:
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name in zip(COLOURS, names, strict=False)
    )
    return f'<div class="legend">{keys}<em>{escape(unit)}</em></div>'


def _row_name(name: str, y: int) -> str:
    text = name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"
    return f'<text class="axis" x="{_NAMES - 8}" y="{y}" text-anchor="end">{escape(text)}</text>'


def _figure(title: str, height: int, parts: list[str], below: str) -> str:
    label = escape(title)
    return (
        f'<figure><figcaption>{label}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{label}">{"".join(parts)}</svg>{below}</figure>'
    )
