"""The command `vtool serve MODEL|RUN`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete

if TYPE_CHECKING:
    from vtool.evaluation.subject import EvaluatedModel


def serve(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.runs,
            metavar="MODEL|RUN",
            help="A run's folder or name, an export, an adapter, or a model.",
        ),
    ],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- VLLM-ARGUMENT", help="Further arguments of vLLM's server."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="The port to listen on.")
    ] = 8000,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of an adapter's base model, if it was moved."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Model name for requests. Default: the name of its run, or folder."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", help="Data type that vLLM computes in. Default: that of the weights."
        ),
    ] = None,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile", help="Let vLLM compile the model: it starts later and answers faster."
        ),
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="EXE",
            help=(
                "Python interpreter that has vLLM. Default: $VTOOL_VLLM_PYTHON, else"
                " .vllm-venv, else the one that runs vtool."
            ),
        ),
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the command that starts vLLM, and do not run it.")
    ] = False,
    without_key: Annotated[
        bool,
        typer.Option("--without-key", help="Answer other machines without asking for a key."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show vLLM's log.")] = False,
) -> None:
    """Serve a model by vLLM, with the options that make it answer as vtool does.

    It is exported first where it has not been, or merged where vLLM cannot apply its adapter. The
    command waits until the server answers; Ctrl-C ends it.
    """
    import os

    from vtool.cli.common import begin_with_training, exit_on_findings

    with exit_on_findings("serve", model):
        from vtool.config.given_for_recipe import refuse_other_family
        from vtool.serving.vllm import find_vllm

        refuse_other_family(Path(model))  # an environment with vLLM would not help
        vllm = find_vllm(python)
        begin_with_training("vtool serve")
        from vtool.diagnostics.progress import working
        from vtool.serving.command import Address, curl_example, serve_command
        from vtool.serving.model import find_model
        from vtool.serving.server import (
            check_address,
            check_key,
            running,
            wait_for_its_end,
            wait_until_it_answers,
        )

        address = Address(host, port)
        if not without_key:
            check_key(host, more or (), os.environ)
        if not print_:
            check_address(address)
        found, subject = find_model(model, name, not print_, _say, base)
        command = serve_command(
            found, vllm, address, os.environ, dtype=dtype, compile=compile, more=more or ()
        )
        if print_:
            typer.echo(str(command))
            return
        _say(f"vLLM {vllm.version} of {vllm.python}, {'on the CPU' if vllm.on_cpu else 'on a GPU'}")
        _say(str(command))
        with running(command, verbose) as server:
            with working("waiting until vLLM answers"):
                answers = wait_until_it_answers(server, address, found.name)
            if answers:
                typer.echo(f"{subject.in_words()} is served as {found.name}: {address.url}/v1")
                typer.echo(f"  {curl_example(found, address, *_example(subject))}")
                _say("Ctrl-C ends it")
            status = wait_for_its_end(server)
        _say("stopped")
    raise typer.Exit(status)


def _example(subject: "EvaluatedModel") -> tuple[str, Path | None]:
    """Return a question, and an image of the run's to ask it about."""
    from vtool.diagnostics import Findings
    from vtool.evaluation.predict import first_question

    try:
        question = first_question(subject.given)
    except Findings:
        question = "What is shown?"
    image = next(iter(sorted((subject.given / "samples").glob("*.png"))), None)
    return question, image or Path("IMAGE.png")


def _say(line: str) -> None:
    from vtool.diagnostics.printable import printable

    typer.echo(printable(line), err=True)
