"""The comparison of several runs: their results, and what was different about them."""

from collections.abc import Sequence
from pathlib import Path

from vtool.report.ranking import OF_TEST, validation_of
from vtool.report.run_files import RunFiles
from vtool.report.views import Stat, all_states, check_counts, headline, status

# They differ between any two runs, and say nothing about why the results do.
OWN_SETTINGS = {"run.name", "run.dir"}


def names(runs: Sequence[RunFiles]) -> list[str]:
    """Return a name for each run: its own, or its folder where two share one."""
    own = [run.name for run in runs]
    return own if len(set(own)) == len(own) else [str(run.folder) for run in runs]


def results(runs: Sequence[RunFiles]) -> list[tuple[str, list[Stat]]]:
    """Return a line for each headline number that any run has.

    Where there are validation scores, those of the test rows are left to each run's own section.
    """
    lines = [
        (stats[0].label, list(stats))
        for stats in zip(*(headline(run) for run in runs), strict=True)
    ]
    hidden = OF_TEST if any(validation_of(run) for run in runs) else ()
    lines = [
        (label, stats)
        for label, stats in lines
        if any(stat.value for stat in stats) and label not in hidden
    ]
    counts = [check_counts(all_states(run)) or None for run in runs]
    return [
        ("Status", [Stat("Status", status(run)) for run in runs]),
        *lines,
        ("Checks", [Stat("Checks", words) for words in counts]),
    ]


def run_differences(runs: Sequence[RunFiles]) -> list[tuple[str, list[str | None]]]:
    """Return the settings, data and versions that are not the same in all runs.

    None is the value of a run that does not have it.
    """
    lines = []
    for describe in (_settings, _data, _made_with):
        described = [describe(run) for run in runs]
        for key in dict.fromkeys(key for description in described for key in description):
            # A run whose file is missing says nothing, which is not a difference.
            if len({description.get(key) for description in described if description}) > 1:
                lines.append((key, [description.get(key) for description in described]))
    return lines


def have_same_rows(runs: Sequence[RunFiles], split: str) -> bool:
    """Return whether a split had the same rows in all runs, as far as their files say."""
    known = [
        {key: value for key, value in _data(run).items() if key.startswith(f"{split} ")}
        for run in runs
    ]
    return all(each == other for each in known for other in known if each and other)


def _settings(run: RunFiles) -> dict[str, str]:
    return {
        setting.key: setting.value for setting in run.settings if setting.key not in OWN_SETTINGS
    }


def _data(run: RunFiles) -> dict[str, str]:
    facts = {}
    for name, split in run.data.items():
        if isinstance(split, dict):
            files = split.get("files")
            facts[f"{name} rows kept"] = str(split.get("kept", "?"))
            facts[f"{name} files"] = (
                ", ".join(_file(file) for file in files if isinstance(file, dict))
                if isinstance(files, list)
                else ""
            )
    return facts


def _made_with(run: RunFiles) -> dict[str, str]:
    result = run.result or {}
    versions = result.get("versions")
    return (
        {f"version of {name}": str(version) for name, version in versions.items()}
        if isinstance(versions, dict)
        else {}
    ) | {key: str(result[key]) for key in ("ranks", "threads") if key in result}


def _file(file: dict[str, object]) -> str:
    digest = f" ({str(file['sha256'])[:12]})" if "sha256" in file else ""
    return f"{Path(str(file.get('path', file.get('format', '?')))).name}{digest}"
