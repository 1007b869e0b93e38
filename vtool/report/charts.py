"""The curves, as SVG inside the page.

Matplotlib draws them ahead of time, so that the page needs no JavaScript, which the artifact
viewers of CI systems block. Colors are drawn as stand-ins and then replaced by the page's CSS
variables: one drawing serves the light and the dark page.
"""

import io
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vtool.report.run_files import RunFiles
from vtool.report.statistics import smooth, thin, tokens_per_second
from vtool.report.words import in_words, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 400, 210
_BUCKETS = 250
_LOG_FROM = 30.0
# Dashes distinguish runs where colors cannot: for the color-blind, in gray print, and where
# colors come round again.
_RUN_COLORS = 6
_DASHES = ((), (5, 1.5), (1.5, 1.5), (7, 1.5, 1.5, 1.5), (10, 3), (3, 3), (1, 4))
_INK, _RULE = "#a00001", "#a00002"
_RUNS = tuple(f"#b0000{index}" for index in range(_RUN_COLORS))
_STAND_INS = {_INK: "var(--ink-2)", _RULE: "var(--rule)"} | {
    stand_in: f"var(--run-{index})" for index, stand_in in enumerate(_RUNS)
}

Points = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `svg` is None where there is nothing to draw, and `note` says why."""

    title: str
    unit: str
    svg: str | None
    kind: str
    value: str
    """The number that people look for first: the `last`, the `peak` or the `median`."""
    note: str


@dataclass(frozen=True, slots=True)
class _Plan:
    title: str
    unit: str
    read: Callable[[RunFiles], Points]
    words: Callable[[float], str]
    style: Literal["noisy", "points", "line"]
    """`noisy` is drawn raw and smoothed, `points` as dots that a line joins."""
    summary: Literal["last", "peak", "median"] = "last"
    can_be_log: bool = True
    limit: str | None = None
    """The setting whose value is a line in the chart."""


def _series(records: Literal["steps", "evaluations"], field: str) -> Callable[[RunFiles], Points]:
    def read(run: RunFiles) -> Points:
        known = [row for row in getattr(run, records) if getattr(row, field) is not None]
        return [row.step for row in known], [getattr(row, field) for row in known]

    return read


_PLANS = (
    _Plan(
        "Training loss", "nats per supervised token", _series("steps", "loss"), in_words, "noisy"
    ),
    _Plan(
        "Validation NLL",
        "nats per supervised token",
        _series("evaluations", "nll"),
        in_words,
        "points",
    ),
    _Plan(
        "Validation exact match",
        "share of rows",
        _series("evaluations", "exact_match"),
        percent,
        "points",
        can_be_log=False,
    ),
    _Plan(
        "Gradient norm",
        "before clipping",
        _series("steps", "grad_norm"),
        in_words,
        "noisy",
        limit="optim.clip_norm",
    ),
    _Plan("Learning rate", "", _series("steps", "lr"), in_words, "line", "peak", can_be_log=False),
    _Plan(
        "Throughput",
        "tokens per second",
        lambda run: tokens_per_second(run.steps),
        in_words,
        "noisy",
        "median",
        can_be_log=False,
    ),
)


def swatches(count: int) -> list[tuple[str, str]]:
    """Return the color and the `stroke-dasharray` of each run, for the legend."""
    dashes = [" ".join(str(2 * part) for part in dash) for dash in _DASHES]
    return [
        (f"var(--run-{index % _RUN_COLORS})", dashes[index % len(dashes)]) for index in range(count)
    ]


def charts(runs: Sequence[RunFiles]) -> list[Chart]:
    """Return the charts of a report, the runs laid over each other in the order given."""
    rows = (rows for run in runs for rows in (run.steps, run.evaluations))
    last = max((row.step for records in rows for row in records), default=1)
    return [_chart(plan, runs, last) for plan in _PLANS]


def _chart(plan: _Plan, runs: Sequence[RunFiles], last_step: int) -> Chart:
    curves = [_finite(plan.read(run)) for run in runs]
    if not any(xs for xs, _ in curves):
        source = "evaluation" if plan.style == "points" else "step"
        note = f"Not measured: metrics.jsonl has no {source} with it."
        return Chart(plan.title, plan.unit, svg=None, kind="", value="", note=note)
    notes = []
    limit = _limit(plan, runs)
    if limit is not None and len(runs) == 1:
        values = curves[0][1]
        above = sum(value > limit for value in values)
        notes.append(f"Clipped to {in_words(limit)} in {above} of {len(values)} steps.")
    holes = [sum(not math.isfinite(y) for y in plan.read(run)[1]) for run in runs]
    if any(holes):
        notes.append(f"Not finite, and not drawn, at {sum(holes)} point(s).")
    kind = value = ""
    if len(runs) == 1:
        kind, value = plan.summary, plan.words(_summary(plan, curves[0][1]))
    elif not all(xs for xs, _ in curves):
        notes.append("Not measured in every run.")
    svg, is_log = _draw(plan, curves, limit, last_step)
    unit = ", ".join(part for part in (plan.unit, "log scale" if is_log else "") if part)
    return Chart(plan.title, unit, svg, kind, value, " ".join(notes))


def _finite(points: Points) -> Points:
    rows = [(x, y) for x, y in zip(*points, strict=True) if math.isfinite(y)]
    return [x for x, _ in rows], [y for _, y in rows]


def _limit(plan: _Plan, runs: Sequence[RunFiles]) -> float | None:
    """Return the value of the plan's setting, where all runs have the same."""
    found = {run.setting(plan.limit) for run in runs} if plan.limit else set()
    try:
        return float(found.pop() or "") if len(found) == 1 else None
    except ValueError:
        return None


def _summary(plan: _Plan, values: Sequence[float]) -> float:
    if plan.summary == "last":
        return smooth(values, _span(values))[-1] if plan.style == "noisy" else values[-1]
    return max(values) if plan.summary == "peak" else statistics.median(values)


def _span(values: Sequence[float]) -> float:
    return max(1.0, len(values) / 25)


def _draw(
    plan: _Plan, curves: Sequence[Points], limit: float | None, last_step: int
) -> tuple[str, bool]:
    # Here and not at the top: matplotlib takes most of a second to import, which following a run in
    # the terminal must not pay.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": plan.title,
        "font.size": 11,
        "axes.linewidth": 0.8,
        "path.simplify_threshold": 0.2,
    }
    # From matplotlib's defaults, not from what this user's matplotlibrc says: the same files give
    # the same page everywhere.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72))
        axes = figure.add_axes(
            (46 / _WIDTH, 34 / _HEIGHT, (_WIDTH - 56) / _WIDTH, (_HEIGHT - 44) / _HEIGHT)
        )
        drawn: list[float] = []
        for index, (xs, ys) in enumerate(curves):
            color, dash = _RUNS[index % _RUN_COLORS], _DASHES[index % len(_DASHES)]
            if plan.style == "noisy" and len(curves) == 1:
                axes.plot(*thin(xs, ys, _BUCKETS), color=color, linewidth=0.8, alpha=0.3)
            strong = smooth(ys, _span(ys)) if plan.style == "noisy" else list(ys)
            drawn += strong
            marker = "o" if plan.style == "points" or len(xs) == 1 else ""
            line = axes.plot(
                *thin(xs, strong, _BUCKETS),
                color=color,
                linewidth=1.7,
                linestyle=(0, dash or None),
                zorder=3,
            )[0]
            line.set(marker=marker, markersize=4, clip_on=False)
        is_log = plan.can_be_log and min(drawn) > 0 and max(drawn) > _LOG_FROM * min(drawn)
        axes.set_xlim(0, max(1, last_step))
        _dress(axes, plan, is_log, limit)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), plan, curves), is_log


def _dress(axes: "Axes", plan: _Plan, is_log: bool, limit: float | None) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if limit is not None:
        axes.axhline(limit, color=_INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    if is_log:
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1, 3) if high < 1000 * low else (1,), numticks=8)
        )
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        # From 0, so that a small wobble does not look like a collapse; what is below 0 shows
        # itself.
        axes.set_ylim(
            (0, 1) if plan.words is percent else (min(0.0, axes.dataLim.y0), axes.get_ylim()[1])
        )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plan.words(value)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("step", color=_INK, labelpad=2)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, colors=_INK, pad=5)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_INK)


def _inline(svg: str, plan: _Plan, curves: Sequence[Points]) -> str:
    """Make a drawing fit for the page: its colors, its font, unique ids, an accessible name."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # The ids that are used are digests salted with the chart's title; the others are the same in
    # every chart.
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", body)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    # Hundredths of a pixel are enough; only inside of tags, for what is between them are the
    # labels.
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), body)
    for stand_in, variable in _STAND_INS.items():
        body = body.replace(stand_in, variable)
    return re.sub(
        r"<svg[^>]*>",
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_in_words(plan, curves)}">',
        body,
        count=1,
    )


def _in_words(plan: _Plan, curves: Sequence[Points]) -> str:
    """Return the chart in words, for screen readers."""
    ranges = []
    for xs, ys in curves:
        if xs:
            first, last, low, high = (
                plan.words(value) for value in (ys[0], ys[-1], min(ys), max(ys))
            )
            ranges.append(
                f"{first} at step {xs[0]}, {last} at step {xs[-1]}, lowest {low}, highest {high}"
            )
    return f"{plan.title} by step: {'; '.join(ranges)}"
