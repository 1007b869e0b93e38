"""The 18 errors that TrainCheck (OSDI'25) detects, and what of ours sees each.

Their names are those of its evaluation workloads. Where a run is named, it is one of `planted`:
the same mistake in a loop on a CPU. Their own scripts need old releases, GPUs or data, and were not
run.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Error:
    """An error of theirs."""

    what: str
    planted: str | None = None
    """The run of ours that has the mistake."""
    not_seen: str = ""
    """The reason why no command of ours sees it, or none was run."""


_FAULTY = "a rank's gradients changed"
ERRORS = {
    "baichuan2-86": Error("data lost between GPUs: ranks reduce to different values", _FAULTY),
    "pytorch-84803": Error("the same, by a driver", _FAULTY),
    "pytorch-96600": Error("the same, by peer-to-peer copies", _FAULTY),
    "deepspeed-1801": Error(
        "clipping by a norm that is another one on each rank: replicated weights drift apart",
        "a rank's gradients changed",
    ),
    "deepspeed-5794": Error("a hang of MoE", not_seen="it is not silent: the run stands still"),
    "lightning-thunder-725": Error(
        "autocast is lost when a model is compiled",
        not_seen="that a run computes in float32 is in the facts, and is not a finding: nobody"
        " says what was meant",
    ),
    "mmpretrain-702": Error(
        "stages that are to be frozen are trained",
        not_seen="the watch does not know what was to be frozen; of a recipe of ours `vtool verify`"
        " does (`trained-set-differs`)",
    ),
    "pytorch-51800": Error(
        "spectral norm is not initialized in evaluation", not_seen="no layer of language models"
    ),
    "pytorch-104336": Error(
        "a model that was moved loses the hooks of DDP: gradients are never reduced",
        "gradients never reduced",
    ),
    "pytorch-115607": Error(
        "a compiled optimizer leaves out what once had no gradient",
        "a layer stepped once and no more",
    ),
    "pytorch-forum-84911": Error(
        "all but the norms is frozen",
        not_seen="that little is trained may be meant; `--html` shows what is",
    ),
    "stackoverflow-60335387": Error("no zero_grad", "zero_grad forgotten"),
    "stackoverflow-67180955": Error(
        "all workers draw the same augmentations (torch 1.8)",
        not_seen="the ledger detects equal pictures, not pictures that were changed alike",
    ),
    "transformers-17877": Error(
        "weights are initialized twice", not_seen="other random weights, and no less random"
    ),
    "transformers-23723": Error(
        "Whisper leaves max_new_tokens out", not_seen="of answers, not of training"
    ),
    "transformers-33844": Error(
        "FlashAttention drops out in evaluation", not_seen="needs a GPU: not run"
    ),
    "transformers-34204": Error(
        "Pixtral's processor puts all images of a batch into one row",
        not_seen="the processor of 4.45.2 was not run; of our own rows `image-token-mismatch`",
    ),
    "x-jxmnop-ddp": Error(
        "the module is called, and not DDP around it: gradients are never reduced",
        "gradients never reduced",
    ),
}
