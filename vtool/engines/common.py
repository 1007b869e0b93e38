"""The base of engines on a torch module's own parameters, and functions that engines share."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from vtool.engines.contract import GroupMember, OptimizerGroup, Owner, to_all_ranks
from vtool.engines.ranks import Ranks
from vtool.models.adapters import (
    Adapter,
    adapter_parts,
    adapter_scale,
    has_adapters,
    is_adapter_name,
    merge_parts,
    saved_name,
)
from vtool.models.nf4 import Nf4Linear, numbers_of


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained, each once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def sizes(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters of a whole model, and of those that are trained."""
    return sum(numbers_of(module).values()), sum(one.numel() for one in trainable(module))


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, largest: float | None) -> Tensor:
    """Scale the gradients from `norm`, a scalar, down to `largest`, and return `norm`.

    Where it is not finite, they are multiplied by 1. Nothing waits for the device.
    """
    if largest is not None:
        clip_grads_with_norm_(parameters, largest, norm.where(norm.isfinite(), 0))
    return norm


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and afterwards back into training mode."""
    module.eval()
    try:
        yield
    finally:
        module.train()


def backward(loss: Tensor) -> None:
    """Run the backward pass, where the loss depends on a trained parameter.

    It does not where the tower alone is trained, and there is no image.
    """
    if loss.requires_grad:
        torch.autograd.backward(loss)


def model_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by their names in files, as this rank has them."""
    state = {saved_name(name): parameter.detach() for name, parameter in module.named_parameters()}
    kept = module.state_dict().keys()  # without the buffers that are computed, not learnt
    return state | {name: buffer for name, buffer in module.named_buffers() if name in kept}


def materialize(
    module: nn.Module, weights: Mapping[str, Tensor], device: torch.device, prefix: str = ""
) -> None:
    """Give parameters on the meta device their memory and values, one at a time, in place.

    What is one parameter in several places stays one.

    Args:
        weights: whole, by names in files, in any dtype. A module without such parameters has them.
        device: where to.
        prefix: what stands before the module's names in the whole model.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for path, part in module.named_modules():
        for name, parameter in part._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if isinstance(part, Nf4Linear) and name == "weight":
                part.pack(weights[saved_name(f"{prefix}{path}.{name}")], device)
                continue
            if parameter not in made:
                whole = weights[saved_name(f"{prefix}{path}.{name}")]
                own = torch.empty_like(parameter, device=device).detach().copy_(whole)
                made[parameter] = nn.Parameter(own, parameter.requires_grad)
            part._parameters[name] = made[parameter]
    load_buffers(module, weights, prefix)


def load_buffers(module: nn.Module, weights: Mapping[str, Tensor], prefix: str = "") -> None:
    """Load the persistent buffers that weights have."""
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if (whole := weights.get(saved_name(prefix + name))) is not None:
                buffer.copy_(whole)


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>.<entry>`, as this rank has it."""
    return {
        f"{saved_name(name)}.{entry}": value
        for name, parameter in module.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


class TorchEngine:
    """The base of engines that train a torch module's own parameters: all but their passes.

    An engine that shards them says how a tensor is gathered (`_gather`), and what this rank keeps
    of a whole one (`_share`).
    """

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        self.module = module
        self.ranks = self.data = ranks
        self.size, self.trained = sizes(module)
        self.parameters: list[nn.Parameter] = []
        self.optimizer: torch.optim.Optimizer

    def gradients(self) -> dict[str, Tensor]:
        there = ((name, parameter.grad) for name, parameter in self.named_parameters())
        return {
            name: whole.to("cpu", copy=True)
            for name, gradient in there
            if gradient is not None and (whole := self._gather(gradient, 0)) is not None
        }

    def optimizer_step(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def evaluating(self) -> AbstractContextManager[None]:
        return evaluation_mode(self.module)

    def iter_hf_weights(
        self, adapter: Adapter = "merged", owner: Owner = to_all_ranks
    ) -> Iterator[tuple[str, Tensor]]:
        tensors = model_tensors(self.module)
        packed = {
            saved_name(f"{path}.weight"): layer
            for path, layer in self.module.named_modules()
            if isinstance(layer, Nf4Linear)
        }
        for name, tensor in tensors.items():
            if is_adapter_name(name) != (adapter == "only"):
                continue
            layer = packed.get(name)
            # of `lora.base_dtype`: what is merged is not rounded
            narrow = layer is not None or tensor.dtype == torch.bfloat16
            count = tensor.numel() if layer is None else layer.in_features * layer.out_features
            to = owner(count * (4 if narrow else tensor.element_size()))
            kept = self._gather(tensor, to)
            there = adapter_parts(name) if adapter == "merged" else ()
            gathered = {part: self._gather(tensors[part], to) for part in there if part in tensors}
            if kept is None:
                continue
            whole = kept if layer is None else layer.unpacked()
            whole = whole.float() if narrow else whole
            parts = {part: one for part, one in gathered.items() if one is not None}
            if parts:
                whole = merge_parts(name, whole, parts, adapter_scale(self.module))
            yield name, whole

    def model_state(self, owner: Owner = to_all_ranks) -> Iterator[tuple[str, Tensor]]:
        return self.iter_hf_weights("only" if has_adapters(self.module) else "merged", owner)

    def optimizer_state(self, owner: Owner = to_all_ranks) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in optimizer_tensors(self.module, self.optimizer).items():
            whole = self._gather(tensor, owner(tensor.numel() * tensor.element_size()))
            if whole is not None:
                yield name, whole

    def load_state(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        adapted = has_adapters(self.module)
        own = {
            name: tensor
            for name, tensor in model_tensors(self.module).items()
            if is_adapter_name(name) or not adapted
        }
        assert own.keys() == model.keys(), "a checkpoint of the same config has the same tensors"
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(self._share(tensor, model[name]))
        parameters = dict(self.named_parameters())
        self.optimizer.state.clear()
        for key, value in optimizer.items():
            name, _, entry = key.rpartition(".")
            parameter = parameters[name]
            # What is counted for a parameter, such as its steps, has no rows; scales have its own.
            by_rows = value.shape == parameter.shape or (
                len(value.shape) == 2 and value.shape[:1] == parameter.shape[:1]
            )
            kept = self._share(parameter.detach(), value) if by_rows else value
            self.optimizer.state[parameter][entry] = kept.to(parameter.device, copy=True)

    def optimizer_groups(self) -> Iterator[OptimizerGroup]:
        names = {parameter: name for name, parameter in self.named_parameters()}
        for group in self.optimizer.param_groups:
            members = tuple(
                GroupMember(names[one], one.dim(), one.dtype) for one in group["params"]
            )
            yield OptimizerGroup(self.optimizer, group, members)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((saved_name(name), parameter) for name, parameter in self.module.named_parameters())

    def _gather(self, tensor: Tensor, to: int | None) -> Tensor | None:
        """Return the whole of a tensor, which may be sharded, on rank `to` or on all ranks.

        Every rank calls it; those that are not to have the tensor get None.
        """
        return tensor if to in (None, self.ranks.rank) else None

    def _share(self, parameter: Tensor, whole: Tensor) -> Tensor:
        """Return this rank's share of a whole tensor, which has a parameter's rows."""
        return whole
