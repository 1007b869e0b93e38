"""Every file that is made from code: `make goldens` writes all of them.

These are the settings in force of each shipped recipe, the JSON schema, the tables and figures in
docs/rules.md, docs/engines.md, docs/verify.md, docs/install.md, docs/zoo.md, docs/advisories.md,
docs/time-machine.md, docs/trainer-sweep.md and README.md. A test holds each equal to its code.
"""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from tests.commands import vtool
from tests.config.foreign import coming_from
from tests.config.test_golden import GOLDEN, effective
from tests.doctor import advisories_page
from tests.installed import tables as installed
from tests.planning import recipe_heads
from tests.verification import proofs_page
from tests.watch import tables
from tests.zoo import zoo
from timemachine import page as time_machine
from timemachine.case import read_cases
from timemachine.sweep import page as trainer_sweep
from vtool.config.completion import completion_words
from vtool.config.json_schema import recipe_schema
from vtool.config.shipped import recipe_names, shipped_folder
from vtool.diagnostics.markdown import as_markdown
from vtool.evaluation.metrics import METRICS
from vtool.evaluation.metrics.choices import accuracy

ROOT = Path(__file__).parents[1]


def generated() -> dict[Path, str]:
    """Return the text of every generated file, by its path."""
    schema = json.dumps(recipe_schema(), indent=1, ensure_ascii=False)
    metrics = [(one.name, one.says) for one in (*METRICS.values(), accuracy(()))]
    return {
        **{GOLDEN / f"{name}.yaml": effective(name) for name in recipe_names()},
        shipped_folder("configs") / "recipe.schema.json": f"{schema}\n",
        shipped_folder("configs") / "completion.json": f"{_lines(completion_words(metrics))}\n",
        advisories_page.PAGE: advisories_page.page(),
        advisories_page.SCHEMA: advisories_page.schema_text(),
        ROOT / "docs/rules.md": as_markdown(),
        coming_from.PAGE: coming_from.renew(coming_from.PAGE.read_text(encoding="utf-8")),
        ROOT / "docs/engines.md": recipe_heads.with_table(
            (ROOT / "docs/engines.md").read_text(encoding="utf-8")
        ),
        ROOT / "docs/verify.md": proofs_page.renew(proofs_page.PAGE.read_text(encoding="utf-8")),
        ROOT / "docs/watch.md": tables.renew(tables.PAGE.read_text(encoding="utf-8")),
        ROOT / "docs/zoo.md": zoo.page(),
        time_machine.PAGE: time_machine.page(
            read_cases(), time_machine.read_results(time_machine.RESULTS)
        ),
        installed.PAGE: installed.renew(installed.PAGE.read_text(encoding="utf-8")),
        trainer_sweep.PAGE: trainer_sweep.page(),
        ROOT / "README.md": time_machine.with_summary(
            _with_findings(_with_figures((ROOT / "README.md").read_text(encoding="utf-8"))),
            read_cases(),
            time_machine.read_results(time_machine.RESULTS),
        ),
    }


def _lines(groups: dict[str, Any]) -> str:
    """Return a document with a line for each entry of its groups."""

    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = []
    for name, entries in groups.items():
        pairs = isinstance(entries, dict)
        inside = [f"{line(key)}: {line(entries[key])}" if pairs else line(key) for key in entries]
        text = ",\n".join(f"  {each}" for each in inside)
        parts.append(f" {line(name)}: {'{' if pairs else '['}\n{text}\n {'}' if pairs else ']'}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _with_figures(readme: str) -> str:
    """Return the README with the two lines in which `make zoo` ends."""
    for line in zoo.figures(len(zoo.DEFECTS), 0):
        begin = line.partition(":")[0]
        readme, found = re.subn(rf"^(    {begin}: ).*$", f"    {line}", readme, flags=re.M)
        assert found == 1, f"README.md has no line `{begin}:`"
    return readme


def _with_findings(readme: str) -> str:
    """Return the README with what its example of `validate-config` prints."""
    example = re.search(
        r"^    \$ vtool (validate-config .*)\n((?:    .*\n|\n(?=    ))*)", readme, re.M
    )
    assert example, "README.md has no example of validate-config"
    printed = vtool(ROOT, *example[1].split(), status=1)
    return readme.replace(example[2], f"{textwrap.indent(printed.strip(), '    ')}\n")


if __name__ == "__main__":
    files = generated()
    for left in set(GOLDEN.glob("*.yaml")) - files.keys():
        left.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
