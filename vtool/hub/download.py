"""Downloads from the hub, by a process of their own: this one's libraries are offline."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable

from vtool.diagnostics import Diagnostic, Findings
from vtool.hub.cache import absent
from vtool.hub.names import HubName, hub_name

_OWN = "VTOOL_SET_OFFLINE"
"""A variable that says that `vtool` itself has set HF_HUB_OFFLINE, and not its user."""
_ABSENT = ("hub-model-absent", "hub-incomplete")
_UNREACHABLE = {"ConnectError", "ConnectTimeout", "NewConnectionError", "NameResolutionError"}
"""Exceptions of a machine that does not reach the hub; huggingface_hub names them in its texts."""
_DOWNLOAD = """
import json, sys
from huggingface_hub import snapshot_download
try:
    snapshot_download(sys.argv[1], revision=sys.argv[2] or None)
except Exception as error:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    print(json.dumps({"kinds": kinds, "text": str(error)}))
"""


def is_offline() -> bool:
    """Return whether the user wants nothing to be fetched."""
    set_by_user = _OWN not in os.environ
    setting = os.environ.get("HF_HUB_OFFLINE", "0").upper()
    return set_by_user and setting in ("1", "ON", "YES", "TRUE")


def online_environment() -> dict[str, str]:
    """Return the environment of a process that may fetch and send."""
    left_out = {_OWN, "HF_HUB_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS"}
    return {name: value for name, value in os.environ.items() if name not in left_out}


def download_absent(findings: Iterable[Diagnostic], say: Callable[[str], object]) -> bool:
    """Download the models that findings say are not there; return whether there was one.

    Raises:
        Findings: as `download`.
    """
    names = {one.seen for one in findings if one.rule in _ABSENT and one.seen}
    wanted = [name for name in map(hub_name, sorted(names)) if name]
    if is_offline():
        return False
    for name in wanted:
        say(f"downloading {name}: {name.download}")
        download(name)
    return bool(wanted)


def download(model: HubName) -> None:
    """Download a model into the hub's cache; its progress is on standard error.

    Raises:
        Findings: `hub-name-unknown`, `hub-gated`, `hub-model-absent`; fatal.
    """
    done = subprocess.run(
        [sys.executable, "-c", _DOWNLOAD, model.name, model.revision or ""],
        env=online_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == 0 and not done.stdout.strip():
        return
    try:
        error = json.loads(done.stdout.strip().splitlines()[-1])
        kinds, text = set(error["kinds"]), str(error["text"]).strip()
    except (ValueError, IndexError, KeyError, TypeError):
        kinds, text = set(), f"the download ended with status {done.returncode}"
    raise _failed(model, kinds, text.splitlines()[0] if text else "no reason is given")


def _failed(model: HubName, kinds: set[str], text: str) -> Findings:
    if "GatedRepoError" in kinds:
        message = f"{model}: its owner gives it only to those who have asked, and logged in"
        return Findings(Diagnostic("hub-gated", message, seen=str(model)), fatal=True)
    if kinds & {"RepositoryNotFoundError", "RevisionNotFoundError"}:
        revision = model.revision if "RevisionNotFoundError" in kinds else None
        what = f"has no revision {revision} of {model.name}" if revision else f"has no {model.name}"
        message = f"the hub {what}, or it is private"
        return Findings(Diagnostic("hub-name-unknown", message, seen=str(model)), fatal=True)
    if kinds & _UNREACHABLE or any(name in text for name in _UNREACHABLE):
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        message = f"{model} is not on this machine, which has no connection to the hub ({hub})"
        help = (
            f"on a machine that has one: {model.download} --local-dir FOLDER; copy that folder here"
            " and give its path: model.path=FOLDER"
        )
        finding = Diagnostic("hub-model-absent", message, help, seen=str(model))
        return Findings(finding, fatal=True)
    return absent(model, f"{model} could not be downloaded: {text}", None)
