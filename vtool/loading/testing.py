"""The check of a class for a model author's own tests."""

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from vtool.diagnostics import Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.diagnostics.render import render_results
from vtool.diagnostics.result import Result
from vtool.diagnostics.rules_loading import CLASS_RULES

if TYPE_CHECKING:
    from torch import Tensor


class WeightsDoNotLand(Findings):
    """The errors about a class, as `vtool load-check` prints them: each with its line."""

    def __str__(self) -> str:
        result = Result.of_findings("", self.diagnostics)
        text = StringIO()
        render_results([result], "full", command="load-check", stream=text)
        *findings, last = text.getvalue().rstrip().split("\n")
        return "\n".join([last.partition("; checks: ")[0], *findings]).rstrip()


def check_load_weights(
    factory: "Callable[[], Any]",
    checkpoint: "Mapping[str, Tensor]",
    *,
    checks: Sequence[str] = CLASS_RULES,
    slots: int = 1,
    allow: Sequence[str] = (),
) -> Result:
    """Load a checkpoint into a class in every way that can go wrong, in this process.

    Args:
        factory: makes a new object, with `load_weights(iterable of (name, tensor))`,
            `named_parameters()` and, where there, `named_buffers()`. It is called afresh for each
            load, after `torch.manual_seed(0)`.
        checkpoint: the tensors by name, in the order in which a loader gives them.
        checks: the rules that are asked (`vtool explain stale-reference`), at least one.
        slots: for how many requests a tensor stays valid, at least one.
        allow: patterns of parameters and tensors that may be left unwritten or unread.

    Returns:
        The result, warnings and notes included.

    Raises:
        ValueError: no rule has a name of `checks`, or there is nothing to check.
        WeightsDoNotLand: every error that was found, `load-failed` where there was no verdict; a
            `vtool.Findings`, and so a `ValueError`.
    """
    __tracebackhide__ = True  # pytest shows the test's line, and not those of vtool
    from vtool.config.schema import LoadCheck
    from vtool.loading.probe.file_host import facts_of
    from vtool.loading.verdict import judge

    for name in checks:
        if name not in CLASS_RULES:
            likely = did_you_mean(near(name, CLASS_RULES))
            raise ValueError(
                f"no check of a class is named `{name}`" + (f"; {likely}" if likely else "")
            )
    if not checks:
        raise ValueError("`checks` names no check")
    if slots < 1:
        raise ValueError(
            f"`slots` is {slots}, and a tensor that is given is valid at least until the next is"
            " asked for: 1 or more"
        )
    if not checkpoint:
        raise ValueError("`checkpoint` has no tensors")
    facts = facts_of(factory, checkpoint, checks, slots, LoadCheck.model_fields["sources"].default)
    result = judge(getattr(factory, "__qualname__", "factory"), facts, checks, allow)
    if errors := [finding for finding in result.findings if finding.severity == "error"]:
        raise WeightsDoNotLand(errors)
    return result
