"""Record the settings of other trainers from their installed dataclasses.

python -m tests.config.foreign.record_trainers llamafactory=PYTHON ms-swift=PYTHON trl=PYTHON

PYTHON is an interpreter that has the trainer. What is named is renewed in
`vtool/config/foreign/trainer_fields.json`, the rest stays.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import vtool.config.foreign

TABLE = Path(vtool.config.foreign.__file__).with_name("trainer_fields.json")
CLASSES = {
    "llamafactory": (
        "llamafactory",
        "from llamafactory.hparams.parser import _TRAIN_ARGS as classes",
    ),
    "ms-swift": (
        "ms_swift",
        "from swift.arguments import SftArguments; classes = (SftArguments,)",
    ),
    "trl": (
        "trl",
        "from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig;"
        "classes = (ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig)",
    ),
}
"""By trainer: its distribution, and what makes `classes`, those that its command is parsed into."""
_PROGRAM = """
import dataclasses, importlib.metadata, json
{imports}
def plain(field):
    made = field.default_factory is not dataclasses.MISSING
    value = field.default_factory() if made else field.default
    value = getattr(value, "value", value)
    return value if isinstance(value, (str, int, float, bool, list)) else None
fields = {{f.name: plain(f) for one in classes for f in dataclasses.fields(one) if f.init}}
versions = {{n: importlib.metadata.version(n) for n in ("{distribution}", "transformers")}}
print("RECORD" + json.dumps({{"versions": versions, "fields": dict(sorted(fields.items()))}}))
"""


def record(trainer: str, python: str) -> dict[str, Any]:
    """Return the versions of a trainer and its settings with their defaults, by an interpreter."""
    distribution, imports = CLASSES[trainer]
    program = _PROGRAM.format(imports=imports, distribution=distribution)
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True, cwd="/"
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RECORD")]
    return json.loads(line.removeprefix("RECORD"))  # type: ignore[no-any-return]


if __name__ == "__main__":
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for given in sys.argv[1:]:
        trainer, _, python = given.partition("=")
        table[trainer] = record(trainer, python)
    TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=1, ensure_ascii=False) + "\n")
