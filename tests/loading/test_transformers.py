"""transformers' classes, loaded by `from_pretrained`."""

from dataclasses import replace
from pathlib import Path

import pytest

from vtool.loading.probe.audit import run_checks
from vtool.loading.probe.transformers_host import TransformersHost


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("LlamaForCausalLM", "input_layernorm"),
        ("LlavaForConditionalGeneration", "pre_layrnorm"),
    ],
)
def test_what_no_tensor_was_loaded_into_is_found_in_the_models_inside_a_model_too(
    name: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TRANSFORMERS_OFFLINE", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(variable, "1")  # set by the host: put back afterwards
    host = TransformersHost()
    host.prepare(several=False)
    subject = host.make_subject(name, tmp_path, lambda stage: None)
    whole = run_checks(subject, ["unwritten-parameter", "partly-written-parameter"], 1, [])
    assert [check.items for check in whole.values()] == [(), ()]
    less = {key: tensor for key, tensor in subject.checkpoint.items() if missing not in key}
    found = run_checks(replace(subject, checkpoint=less), ["unwritten-parameter"], 1, [])[
        "unwritten-parameter"
    ].items
    assert len(found) == len(subject.checkpoint) - len(less) == 2
    assert all(missing in (item.parameter or "") for item in found)
