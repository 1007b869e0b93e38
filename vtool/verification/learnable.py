"""Tokens of rows whose row of the embedding says nothing, and will not learn to."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vtool.config.schema import Run, trained_components
from vtool.data.loader import EncodedRows
from vtool.diagnostics import Diagnostic, Findings
from vtool.faint_rows import faint_rows, row_sizes, rows_at_mean
from vtool.families.linear_layers import ends_in, is_inside
from vtool.models.mapped_weights import weight_files
from vtool.words import first_line

ZERO_ROW, FROZEN_ROW = "zero-embedding-used", "token-not-learnable"
_NAME = re.compile(r"(model\.)?(language_model\.)?(model\.)?embed_tokens\.weight")
_MODULE = "model.language_model.embed_tokens"
_DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
}
_MOST_ROWS, _SHOWN = 1000, 3


@dataclass(frozen=True, slots=True)
class BlankTokens:
    """Rows of the embedding that nothing has been learnt into, and whether a run trains them."""

    zero: frozenset[int] = frozenset()
    at_mean: frozenset[int] = frozenset()
    trained: bool = True
    rows: int = 0
    """All rows of the embedding."""
    why_not: str | None = None
    """The reason why it could not be read."""

    def findings(self, split: str, rows: EncodedRows, kept: Sequence[int]) -> Iterator[Diagnostic]:
        """Yield findings of a split whose rows have such tokens.

        Args:
            kept: its usable rows, of which the first thousand are read.
        """
        used = {"zero": _Used(), "the mean of all, as a resize has made it": _Used()}
        if not self.zero | self.at_mean:
            return
        for index in kept[:_MOST_ROWS]:
            counts = Counter(rows.sample(index).input_ids.tolist())
            for one, ids in zip(used.values(), (self.zero, self.at_mean), strict=True):
                one.add(rows.rows.name(index), {id_: counts[id_] for id_ in ids & counts.keys()})
        read = min(len(kept), _MOST_ROWS)
        for value, one in used.items():
            if not one.rows:
                continue
            names = [
                f"{id_} ({rows.processor.tokenizer.convert_ids_to_tokens(id_)})"
                for id_, _ in one.ids.most_common(_SHOWN)
            ]
            more = f" and {len(one.ids) - _SHOWN} more" if len(one.ids) > _SHOWN else ""
            does = "" if self.trained else ", and it is frozen: it stays so"
            first = one.rows[0] + (", …" if len(one.rows) > 1 else "")
            yield Diagnostic(
                ZERO_ROW if value == "zero" else FROZEN_ROW,
                f"data.{split}: {len(one.rows)} of {read} rows ({first}) have"
                f" {', '.join(names)}{more}, whose row of the embedding is {value}{does}",
                parameter="model.path" if self.trained else "lora.modules_to_save",
            )


@dataclass(slots=True)
class _Used:
    """The ids that rows have, how often, and the rows."""

    ids: Counter[int] = field(default_factory=Counter)
    rows: list[str] = field(default_factory=list)

    def add(self, row: str, counts: dict[int, int]) -> None:
        self.ids.update(counts)
        if counts:
            self.rows.append(row)


def blank_tokens(run: Run, placeholders: Sequence[int | None]) -> BlankTokens:
    """Read the embedding of the weights that a run begins with.

    Args:
        run: says what is trained, too.
        placeholders: ids whose rows are not read: pictures take their places.
    """
    if run.model.starts_from != "pretrained" or run.model.path is None:
        return BlankTokens()  # each row is drawn
    if run.train.source is not None:
        return BlankTokens(why_not="the run begins with the weights of train.from")
    from safetensors import SafetensorError, safe_open

    try:
        for file in weight_files(Path(run.model.path)):
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    if _NAME.fullmatch(name):
                        return _blank(run, opened.get_tensor(name), placeholders)
    except (OSError, SafetensorError, Findings) as error:
        return BlankTokens(why_not=f"the weights cannot be read: {first_line(error)}")
    return BlankTokens(why_not=f"{run.model.path} has no safetensors with an embedding")


def _blank(run: Run, weight: "object", placeholders: Sequence[int | None]) -> BlankTokens:
    import torch

    assert isinstance(weight, torch.Tensor)
    dtype, rows = _DTYPES.get(str(weight.dtype), ""), len(weight)
    data = weight.contiguous().view(torch.uint8).numpy().ravel() if dtype else None
    sizes = row_sizes(data, dtype, rows) if data is not None else None
    if data is None or sizes is None:
        return BlankTokens(why_not=f"the embedding is {weight.dtype}")
    trained = _is_trained(run)
    beside = {one for one in placeholders if one is not None}
    zero = frozenset(faint_rows(sizes)) - beside
    mean = frozenset() if trained else frozenset(rows_at_mean(data, dtype, rows)) - beside - zero
    return BlankTokens(zero, mean, trained, rows)


def _is_trained(run: Run) -> bool:
    """Return whether a run trains the embedding: adapters are on linear layers alone."""
    if "language" not in trained_components(run.model.freeze):
        return False
    if run.lora is None:
        return True
    saved = run.lora.modules_to_save
    return any(ends_in(_MODULE, one) for one in saved) or is_inside(_MODULE, saved)
