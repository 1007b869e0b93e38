"""The page: one HTML file that needs nothing else, made from the files of one run or several."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vtool.report import comparison, views
from vtool.report.answers import disagreement, sheet
from vtool.report.charts import charts, swatches
from vtool.report.files import load_template
from vtool.report.images import Pictures
from vtool.report.over_time import over_time
from vtool.report.profile import read_profile
from vtool.report.proofs import read_proofs
from vtool.report.ranking import rank
from vtool.report.remarks import remarks, spike_lines
from vtool.report.replaceable import write_page
from vtool.report.run_files import RunFiles, read_run
from vtool.report.sources import source_counts, source_scores
from vtool.report.statistics import confusion, pairs
from vtool.report.trained import component_lines, token_lines
from vtool.report.words import in_words, percent
from vtool.version import __version__

# Of the page's 1.5 MB: the rest is for the curves and the tables.
_BYTES_OF_PICTURES = 800_000


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write the page of these run folders to `output`, and return `output`.

    Raises:
        Findings: `not-a-run`, before anything is written.
    """
    return write_page(render_run_page([read_run(folder) for folder in runs]), output)


def render_run_page(runs: Sequence[RunFiles]) -> str:
    """Return the page. The same files give the same bytes."""
    names = comparison.names(runs)
    # The disagreements are why runs are compared, so their pictures come first.
    pictures = Pictures(_BYTES_OF_PICTURES)
    disagreed = disagreement(runs, pictures)
    share = pictures.left // len(runs)
    results = comparison.results(runs) if len(runs) > 1 else []
    return load_template("template.html.j2", Path(__file__).parent).render(
        title=" · ".join(names),
        version=__version__,
        swatches=swatches(len(runs)),
        names=names,
        charts=charts(runs),
        svg=Markup,
        ranking=_ranking(runs, names) if len(runs) > 1 else None,
        results=results,
        with_intervals=any(stat.interval for _, stats in results for stat in stats),
        differences=comparison.run_differences(runs) if len(runs) > 1 else [],
        disagreement=disagreed,
        runs=[
            _view(run, names[position], position, Pictures(share))
            for position, run in enumerate(runs)
        ],
    )


def _ranking(runs: Sequence[RunFiles], names: Sequence[str]) -> Mapping[str, Any] | None:
    settings, ranked = rank(runs, tuple(comparison.OWN_SETTINGS))
    if not ranked:
        return None
    alike = comparison.have_same_rows(runs, "validation")
    rows = [
        {
            "position": each.position,
            "name": names[each.position],
            "settings": each.values,
            "nll": in_words(each.scores.nll if each.scores else None),
            "exact_match": percent(each.scores.exact_match if each.scores else None),
            "step": in_words(each.scores.step if each.scores else None),
            "best": each.best and alike,
        }
        for each in ranked
    ]
    return {"settings": settings, "rows": rows, "alike": alike}


def _view(run: RunFiles, name: str, position: int, pictures: Pictures) -> Mapping[str, Any]:
    checked = views.checks(run)
    return {
        "name": name,
        "folder": str(run.folder),
        "subtitle": views.subtitle(run),
        "status": views.status(run),
        "notices": [*views.notices(run), *remarks(run)],
        "headline": views.headline(run),
        "history": views.history(run),
        "confusion": confusion(run.predictions),
        "pairs": pairs(run.predictions),
        "spikes": spike_lines(run),
        "sheet": sheet(run, position, pictures),
        "over_time": over_time(run, pictures),
        "parts": component_lines(run),
        "tokens": token_lines(run),
        "splits": views.splits(run),
        "training_ledger": views.training_ledger(run),
        "source_counts": source_counts(run),
        "source_scores": source_scores(run),
        "profile": read_profile(run.folder),
        "proofs": read_proofs(run.folder),
        "checks": checked,
        "check_counts": views.check_counts(check.state for check in checked),
        "all_counts": views.check_counts(views.all_states(run)),
        "settings": run.settings,
        "versions": _strings((run.result or {}).get("versions")),
        "checkpoints": run.checkpoints,
        "exported": run.exported,
        "commands": views.commands(run),
    }


def _strings(value: object) -> dict[str, str]:
    return {str(key): str(item) for key, item in value.items()} if isinstance(value, dict) else {}
