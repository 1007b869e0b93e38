"""Fields of megatron-core's DDP config, by release:

the table, the installed package, and what is reported of fields that it lacks.
"""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config.load import examine
from vtool.config.megatron_versions import DDP_CONFIG_FILE, installed_megatron, releases
from vtool.config.schema.megatron import DdpConfig
from vtool.diagnostics import Diagnostic

MEGATRON = ["digits", "engine=megatron"]


def install(site: Path, version: str, *fields: str) -> None:
    """Write the files that pip leaves of a release whose DDP config has these fields."""
    source = site / DDP_CONFIG_FILE
    source.parent.mkdir(parents=True)
    body = "".join(f"    {field}: bool = False\n" for field in fields)
    source.write_text(
        f"raise ImportError('it was imported')\nclass DistributedDataParallelConfig:\n{body}"
    )
    about = site / f"megatron_core-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {version}\n"
    )
    (about / "RECORD").write_text(f"{DDP_CONFIG_FILE},,\n")


def found(*overrides: str) -> tuple[Diagnostic, ...]:
    return examine(MEGATRON[0], [MEGATRON[1], *overrides]).findings


def test_the_table_has_every_field_of_the_release_that_is_installed_and_of_the_schema() -> None:
    there = installed_megatron()
    if there is None:
        pytest.skip("megatron-core is not installed")
    table = releases()
    order = table.releases.index
    here = {
        name
        for name, (first, last) in table.fields.items()
        if order(first) <= order(there.version) <= order(last)
    }
    assert here == there.fields == set(DdpConfig.model_fields)


def test_the_installed_one_is_read_without_being_imported(tmp_path: Path) -> None:
    install(tmp_path, "0.14.0", "bucket_size", "nccl_ub")
    there = installed_megatron([str(tmp_path)])
    assert there is not None
    assert (there.version, there.fields) == ("0.14.0", {"bucket_size", "nccl_ub"})
    assert installed_megatron([str(tmp_path / "nothing")]) is None


def test_a_field_that_the_installed_one_lacks_is_refused_with_its_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "0.17.0", "bucket_size", "overlap_grad_reduce")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "megatron", raising=False)
    finding, *others = found(
        "engine.ddp_config.preserve_fp32_weights=true", "engine.ddp_config.overlap_grad_reduce=true"
    )
    assert others == []
    assert (finding.rule, finding.parameter, finding.seen) == (
        "not-in-megatron-core",
        "engine.ddp_config.preserve_fp32_weights",
        "0.17.0",
    )
    assert (
        "came with megatron-core 0.12.0, and went with 0.17.0; installed is 0.17.0, which does not"
        " have it" in finding.message
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            "num_buckets",
            (
                "`num_buckets` came with megatron-core 0.18.0, and 0.19.2, the newest that is known"
                " here, has it"
            ),
        ),
        (
            "keep_fp8_transpose_cache_when_using_custom_fsdp",
            "came with megatron-core 0.12.0, and went with 0.14.0",
        ),
    ],
)
def test_an_unknown_field_of_another_release_is_reported_with_its_releases(
    field: str, message: str
) -> None:
    (finding,) = found(f"engine.ddp_config.{field}=1")
    assert finding.rule == "unknown-key"
    assert message in str(finding.help)
    assert str(metadata.version("megatron-core")) in str(finding.help)


def test_a_misspelt_field_is_answered_with_what_was_meant() -> None:
    assert (
        found("engine.ddp_config.overlap_grad_reduc=true")[0].help
        == "did you mean `engine.ddp_config.overlap_grad_reduce`?"
    )


def test_without_megatron_core_the_check_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    without = [folder for folder in sys.path if not (Path(folder) / DDP_CONFIG_FILE).exists()]
    monkeypatch.setattr(sys, "path", without)
    assert examine(*MEGATRON[:1], MEGATRON[1:]).checks["not-in-megatron-core"] == "not-run"
    done = CliRunner().invoke(app, ["validate-config", *MEGATRON, "--format", "json"])
    (result,) = json.loads(done.stdout)["results"]
    assert result["details"]["not-in-megatron-core"] == {
        "reason": "megatron-core is not installed here"
    }
    assert done.exit_code == 0
    assert examine("digits").checks["not-in-megatron-core"] == "passed"
