"""Runs the folder by its path, as a package under a name of its own.

Its files are hidden from `import`, so that none stands for a module of others.
"""

import importlib.util
import sys
from pathlib import Path

_NAME = "vtool_load_probe"


def main() -> None:
    """Answer `python FOLDER request.json`, or write the tensors of one load (`state_writer`)."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[_NAME] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    if sys.argv[1] == "--state":
        importlib.import_module(f"{_NAME}.state_writer").write_state(*sys.argv[2:])
        return
    server = importlib.import_module(f"{_NAME}.server")
    sys.exit(server.answer_request(sys.argv[1]))


if __name__ == "__main__":
    main()
