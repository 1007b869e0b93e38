"""Every file that is made from code: `make goldens` writes all of them.

These are the settings in force of each shipped recipe, the JSON schema, the tables and figures in
docs/rules.md, docs/verify.md, docs/install.md, docs/zoo.md and README.md. A test holds each equal
to its code.
"""

import json
import re
from pathlib import Path

from tests.config.test_golden import GOLDEN, effective
from tests.installed import tables as installed
from tests.verification import proofs_page
from tests.watch import tables
from tests.zoo import zoo
from vtool.config.json_schema import recipe_schema
from vtool.config.resources import recipe_names, share
from vtool.diagnostics.markdown import as_markdown

ROOT = Path(__file__).parents[1]


def generated() -> dict[Path, str]:
    """Return the text of every generated file, by its path."""
    schema = json.dumps(recipe_schema(), indent=1, ensure_ascii=False)
    return {
        **{GOLDEN / f"{name}.yaml": effective(name) for name in recipe_names()},
        share("configs") / "recipe.schema.json": f"{schema}\n",
        ROOT / "docs/rules.md": as_markdown(),
        ROOT / "docs/verify.md": proofs_page.renew(proofs_page.PAGE.read_text(encoding="utf-8")),
        ROOT / "docs/watch.md": tables.renew(tables.PAGE.read_text(encoding="utf-8")),
        ROOT / "docs/zoo.md": zoo.page(),
        installed.PAGE: installed.renew(installed.PAGE.read_text(encoding="utf-8")),
        ROOT / "README.md": _with_figures((ROOT / "README.md").read_text(encoding="utf-8")),
    }


def _with_figures(readme: str) -> str:
    """Return the README with the two lines in which `make zoo` ends."""
    for line in zoo.figures(len(zoo.DEFECTS), 0):
        begin = line.partition(":")[0]
        readme, found = re.subn(rf"^(    {begin}: ).*$", f"    {line}", readme, flags=re.M)
        assert found == 1, f"README.md has no line `{begin}:`"
    return readme


if __name__ == "__main__":
    files = generated()
    for left in set(GOLDEN.glob("*.yaml")) - files.keys():
        left.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
