"""Print the findings of a function of vtool's, as its commands do with --format json."""

import json

from vtool.diagnostics.render import as_json
from vtool.diagnostics.result import Result


def report(what, findings):
    print(json.dumps(as_json([Result.of_findings(what, findings)], what)))
