"""The rule about settings that have no effect beside the others."""

from collections.abc import Iterator

from vtool.config.origins import Origins
from vtool.config.schema import Fsdp2, Run
from vtool.diagnostics import Diagnostic


def size_of_a_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """A model that is loaded has a size of its own."""
    if (
        run.model.starts_from == "pretrained"
        and run.model.path is not None
        and run.model.size is not None
    ):
        message = (
            f"model.size is {run.model.size}, but the model in model.path has a size of its own"
        )
        yield Diagnostic(
            "ignored-setting",
            message,
            "set model.size=null",
            "model.size",
            origins.near("model.size"),
        )


def offload_to_itself(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """On a CPU there is nothing to take weights away from.

    Of device.kind=auto, `training.setup` says so where it has found a CPU.
    """
    if isinstance(run.engine, Fsdp2) and run.engine.cpu_offload and run.device.kind == "cpu":
        message = (
            "engine.cpu_offload is true, but device.kind is cpu: the weights are in the CPU's"
            " memory in any case"
        )
        origin = origins.near("engine.cpu_offload")
        yield Diagnostic(
            "ignored-setting", message, "set engine.cpu_offload=false", "engine.cpu_offload", origin
        )


def evaluation_of_nothing(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """How to evaluate matters where there is something to evaluate.

    Only what somebody has written is noted, never a default.
    """
    if run.data.validation or run.data.test:
        return
    for name in ("evaluation.batch_size", "evaluation.generate.max_new_tokens"):
        if origin := origins.of(name):
            message = (
                f"{name} is set, but there is nothing to evaluate: data.validation and data.test"
                " are empty"
            )
            yield Diagnostic(
                "ignored-setting", message, "give data.test, or leave it out", name, origin
            )
