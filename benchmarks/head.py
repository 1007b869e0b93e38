"""Benchmark: the head's loss over a vocabulary of 151,936 tokens, from chunks and from all logits.

Peak memory beyond what is given (hidden states and weight), and CPU time, of ΣNLL and its gradient
for 4,096 positions and a hidden size of 896, each in a process of its own; and how far loss and
gradient are from those in float64, at 512 positions.

    python -m benchmarks.head
"""

import resource
import subprocess
import sys
import time

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vtool.data.head_nll import summed_nll_of_hidden

POSITIONS, HIDDEN, VOCABULARY = 4096, 896, 151_936


def from_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = (hidden @ weight.T).flatten(0, 1)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets.flatten(), reduction="sum")


WAYS = {"all logits": from_logits, "in chunks": summed_nll_of_hidden}


def given(dtype: torch.dtype, positions: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(1, positions, HIDDEN, dtype=torch.float32)
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float32) * 0.02
    hidden, weight = hidden.bfloat16().to(dtype), weight.bfloat16().to(dtype)  # the same numbers
    return hidden, weight, torch.randint(0, VOCABULARY, (1, positions))


def gradients(way: str, dtype: torch.dtype, positions: int) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, targets = given(dtype, positions)
    loss = WAYS[way](hidden.requires_grad_(), weight.requires_grad_(), targets)
    (loss / positions).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return loss.detach(), hidden.grad, weight.grad


def measure(way: str, name: str) -> None:
    """Print MiB and CPU seconds; in a process of its own."""
    dtype = getattr(torch, name)
    hidden, weight, targets = given(dtype, POSITIONS)
    hidden.requires_grad_()
    weight.requires_grad_()
    # the matrix product's own buffers, whatever the way
    WAYS[way](hidden[:, :64], weight, targets[:, :64]).backward()
    hidden.grad = weight.grad = None
    before, began = _peak_after_reset(), time.process_time()
    (WAYS[way](hidden, weight, targets) / POSITIONS).backward()
    print(_peak() - before, time.process_time() - began)


def _peak_after_reset() -> float:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the kernel's peak begins anew at what is resident now
    return _peak()


def _peak() -> float:
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    print(f"{POSITIONS} positions, hidden size {HIDDEN}, {VOCABULARY} tokens, one thread")
    for name in ("float32", "bfloat16"):
        found = {}
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.head", way, name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[way] = [float(each) for each in done.stdout.split()]
            print(f"  {name} {way}: {found[way][0]:,.0f} MiB, {found[way][1]:.1f} CPU s")
        memory, seconds = (
            one / other for one, other in zip(*reversed(found.values()), strict=True)
        )
        print(f"  {name}: in chunks x{memory:.2f} of the memory, x{seconds:.2f} of the CPU time")
    truth = gradients("all logits", torch.float64, 512)
    for name in ("float32", "bfloat16"):
        for way in WAYS:
            parts = gradients(way, getattr(torch, name), 512)
            apart = [
                float((one.double() - other).norm() / other.norm())
                for one, other in zip(parts, truth, strict=True)
            ]
            print(
                f"  {name} {way}, against float64: loss {apart[0]:.1e}, gradient of hidden states"
                f" {apart[1]:.1e}, of the weight {apart[2]:.1e}"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure(*sys.argv[1:]) if sys.argv[1:] else main()
