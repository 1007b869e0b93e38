"""Sending an export to the hub, by a process of its own: this one's libraries are offline."""

import json
import subprocess
import sys
from pathlib import Path

from vtool.diagnostics import Diagnostic, Findings
from vtool.hub.download import is_offline, online_environment

_PUSH = """
import json, sys
from huggingface_hub import HfApi
folder, name, private = sys.argv[1:]
try:
    api = HfApi()
    made = api.create_repo(name, private=private == "private", exist_ok=True, repo_type="model")
    sent = api.upload_folder(
        folder_path=folder, repo_id=made.repo_id, commit_message="Export of vtool"
    )
    print(json.dumps({"url": str(made), "commit": sent.oid}))
except Exception as error:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    print(json.dumps({"kinds": kinds, "text": str(error)}))
"""


def push(folder: Path, name: str, *, public: bool) -> str:
    """Send a folder to a repository of the hub, which is made where there is none.

    The token is what huggingface_hub finds: HF_TOKEN, or that of `hf auth login`.

    Args:
        folder: what is sent.
        name: of the repository.
        public: make it one that everybody may see, where it is made.

    Returns:
        Its address, and the commit.

    Raises:
        Findings: `hub-push-failed`.
    """
    if is_offline():
        raise _failed(name, "HF_HUB_OFFLINE is set", "take it out of the environment")
    words = [str(folder), name, "public" if public else "private"]
    done = subprocess.run(
        [sys.executable, "-c", _PUSH, *words],
        env=online_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise _failed(name, f"it ended with status {done.returncode}", None) from error
    if "commit" in answer:
        return f"{answer['url']} (commit {answer['commit']})"
    login = "log in first: hf auth login; or set HF_TOKEN to a token that may write"
    refused = "401" in answer["text"] or "403" in answer["text"] or "Token" in answer["kinds"][0]
    reason = (answer["text"].strip().splitlines() or [answer["kinds"][0]])[0]
    raise _failed(name, reason, login if refused else None)


def _failed(name: str, reason: str, help: str | None) -> Findings:
    return Findings(Diagnostic("hub-push-failed", f"{name}: {reason}", help))
