"""A command that a launcher has started several times: joined, done by each, or refused."""

import typer

from vtool.launchers import LaunchedProcess, is_joined, joined_launch, read_launch, wait_for_first

_JOINED = ("train", "evaluate")
"""The processes are the ranks of one run."""
_BY_EACH = ("verify", "validate-config", "plan", "load-check", "watch")
"""Each process does all of it, for its own machine."""
_ANYWHERE = ("doctor", "explain")
"""Each process says what is of its machine, or the same everywhere."""


def check_launcher(command: str) -> None:
    """Refuse, before anything is imported, processes that would each do all of it by themselves.

    The first one speaks for all. Exits with 2.
    """
    from vtool.diagnostics import Diagnostic, Findings

    if command in _ANYWHERE:
        return
    launch = None
    try:
        launch = read_launch()
        if command in _JOINED:
            joined_launch()
            return
        if launch is None or not _started_several(launch):
            return
        if command in _BY_EACH:
            if launch.rank == 0:
                _say(command, launch)
            return
        message = (
            f"{launch.command} has started several processes ({launch.said}), and each would do"
            f" all of `vtool {command}`, into one place"
        )
        help = f"leave {launch.command} out: vtool {command} is one process"
        raise Findings(Diagnostic("launcher-not-joined", message, help), fatal=True)
    except Findings as findings:
        if launch is None and command not in _JOINED:
            return  # it reads none of these variables
        if launch is None or launch.rank == 0:
            from vtool.cli.common import print_findings

            print_findings(findings, command)
        else:
            wait_for_first()
        raise typer.Exit(2) from None


def _started_several(launch: LaunchedProcess) -> bool:
    """Check for processes that were started to run this command.

    The variables of a pod or a container are there for whatever it runs, on each machine.
    """
    return is_joined(launch) and launch.world != 1 and launch.command != "a launcher"


def _say(command: str, launch: LaunchedProcess) -> None:
    together = f"; for all ranks together: vtool watch -- {launch.command} …"
    several = f"each of the {launch.world} processes" if launch.world else "each process"
    typer.echo(
        f"vtool {command}: {several} that {launch.command} has started does all of it"
        f" ({launch.said}){together if command == 'watch' else ''}",
        err=True,
    )
