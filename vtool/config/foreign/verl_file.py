"""The settings of a file of verl's, and which of them its user has given."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vtool.config.foreign.theirs import ForeignFile
from vtool.config.foreign.verl_settings import SameSetting
from vtool.diagnostics import Diagnostic


class VerlFile(ForeignFile):
    """A file of verl's. One that Hydra has composed names every default, which nobody has said."""

    defaults: Mapping[str, Any]

    def says(self, name: str) -> bool:
        """Return whether a setting is of the user's, and not a default that Hydra wrote down."""
        return name in self.given and not (self._is_composed() and self.is_default(name))

    def is_default(self, name: str) -> bool:
        """Return whether a setting has the value that it has where nobody gives one."""
        value, default = self.given.get(name), self.defaults.get(name)
        refers = "${" in str(default) and self._is_composed()
        return value in (None, {}, []) or value == default or refers

    def of_its_engine(self, same: SameSetting) -> SameSetting:
        """Return a setting with the default that it has with the engine that is chosen."""
        return replace(same, default=self.defaults.get(same.theirs, same.default))

    def put_precision(self) -> Iterator[Diagnostic]:
        """Set the type that verl's FSDP computes in, and yield a finding where it is another's."""
        name, other = "engine.mixed_precision.param_dtype", "engine.dtype"
        word = str(self.take(name, "bf16"))
        dtype = {"bf16": "bfloat16", "fp32": "float32"}.get(word, word)
        self.values.get("model", {}).pop("dtype", None)  # of engine.dtype
        if dtype in ("bfloat16", "float32"):
            self.put("model.dtype", dtype, name)
        else:
            self.judged.discard(name)
        if self.says(other) and self.given[other] not in (None, dtype):
            yield self.find(
                "setting-without-reader",
                other,
                f"{other} is {self.given[other]}, but verl's FSDP reads {name} alone: it computes"
                f" in {dtype}",
                f"set +{name}={self.given[other]}",
            )

    def find_unread_warm_up(self, engine: str) -> Iterator[Diagnostic]:
        """Yield a finding where both settings of a warm-up are set: one of them is not read."""
        steps, ratio = "optim.lr_warmup_steps", "optim.lr_warmup_steps_ratio"
        count, share = self.given.get(steps), self.given.get(ratio)
        if not isinstance(count, int) or count <= 0:
            return
        if engine == "veomni":
            message = f"{steps} is {count}, but verl's engine veomni reads {ratio} alone"
            yield self.find("setting-without-reader", steps, message, f"set {ratio}")
        elif share and self.says(ratio):
            message = f"{ratio} is {share}, but {steps} is {count}: it alone is read"
            yield self.find("setting-without-reader", ratio, message, "leave one of them out")

    def _is_composed(self) -> bool:
        return any(one.endswith("._target_") for one in self.given)
