"""Each row of what an Ascend NPU asks for: an example that is found, and one that passes."""

from pathlib import Path

import pytest

from vtool.config.environment.machine import Cann, Machine, Torch, read_machine
from vtool.config.environment.npu import (
    check_machine,
    check_packages,
    check_settings,
    unanswered_rules,
)
from vtool.config.environment.variables import VARIABLES, check_variables, visible_devices
from vtool.config.load import examine, load_run
from vtool.diagnostics import Diagnostic

CPU = Torch("2.13.0+cpu", None)
FINE = Machine(
    {},
    CPU,
    "2.13.0",
    "==2.13.0.*",
    Cann(Path("/cann"), {"toolkit": "8.5.0", "kernels": "8.5.0"}),
    npus=8,
    cores=16,
)
ALLOC = "PYTORCH_NPU_ALLOC_CONF"


def found(text: str, npus: int = 8, cores: int = 16) -> list[Diagnostic]:
    """Return the findings about `A=1;B=2`."""
    variables = dict(part.split("=", 1) for part in text.split(";"))
    return list(check_variables(variables, npus=npus, cores=cores))


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (
            "device-list-cut-off",
            "ASCEND_RT_VISIBLE_DEVICES=1, 2,3",
            "ASCEND_RT_VISIBLE_DEVICES=1,2,3",
        ),
        (
            "device-list-cut-off",
            "ASCEND_RT_VISIBLE_DEVICES=1,3,8",
            "ASCEND_RT_VISIBLE_DEVICES=1,3,7",
        ),
        ("device-list-cut-off", "ASCEND_RT_VISIBLE_DEVICES=2,1", "ASCEND_RT_VISIBLE_DEVICES=1,2"),
        ("device-list-cut-off", "ASCEND_RT_VISIBLE_DEVICES=0,0", "ASCEND_RT_VISIBLE_DEVICES=0"),
        (
            "device-list-cut-off",
            "ASCEND_RT_VISIBLE_DEVICES=0-3",
            "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3",
        ),
        ("device-list-cut-off", "ASCEND_RT_VISIBLE_DEVICES=npu0", "ASCEND_RT_VISIBLE_DEVICES="),
        ("environment-value", "TASK_QUEUE_ENABLE=3", "TASK_QUEUE_ENABLE=2"),
        ("environment-value", "ASCEND_LAUNCH_BLOCKING=true", "ASCEND_LAUNCH_BLOCKING=1"),
        ("environment-value", "NPU_FA2_SPARSE_MODE=4", "NPU_FA2_SPARSE_MODE=2"),
        ("environment-value", "HCCL_CONNECT_TIMEOUT=60", "HCCL_CONNECT_TIMEOUT=120"),
        ("environment-value", "HCCL_CONNECT_TIMEOUT=7201", "HCCL_CONNECT_TIMEOUT=7200"),
        ("environment-value", "HCCL_EXEC_TIMEOUT=-1", "HCCL_EXEC_TIMEOUT=0"),
        ("environment-value", "HCCL_EXEC_TIMEOUT=2147483648", "HCCL_EXEC_TIMEOUT=2147483647"),
        ("environment-value", "HCCL_OP_EXPANSION_MODE=aiv", "HCCL_OP_EXPANSION_MODE=AIV"),
        # CANN 9.0
        ("environment-value", "HCCL_OP_EXPANSION_MODE=CCU", "HCCL_OP_EXPANSION_MODE=CCU_SCHED"),
        ("environment-value", "CPU_AFFINITY_CONF=3", "CPU_AFFINITY_CONF=2"),
        ("environment-value", "CPU_AFFINITY_CONF=1,npu0:3-1", "CPU_AFFINITY_CONF=1,npu0:1-3"),
        (
            "environment-value",
            "CPU_AFFINITY_CONF=1,npu0:1",
            "CPU_AFFINITY_CONF=1,npu0:1-1,npu1:2-5,npu_affine:1",
        ),
        ("environment-value", f"{ALLOC}=max_split_size_mb:10", f"{ALLOC}=max_split_size_mb:64"),
        (
            "environment-value",
            f"{ALLOC}=garbage_collection_threshold:1.5",
            f"{ALLOC}=garbage_collection_threshold:0.8",
        ),
        (
            "environment-value",
            f"{ALLOC}=base_addr_aligned_kb:17",
            f"{ALLOC}=base_addr_aligned_kb:16",
        ),
        ("environment-value", f"{ALLOC}=page_size:2g", f"{ALLOC}=page_size:1g"),
        ("environment-value", f"{ALLOC}=segment_size_mb:513", f"{ALLOC}=segment_size_mb:512"),
        (
            "environment-value",
            f"{ALLOC}=expandable_segments:1",
            f"{ALLOC}=expandable_segments:True",
        ),
        (
            "environment-value",
            f"{ALLOC}=expandable_segment:True",
            f"{ALLOC}=roundup_power2_divisions:[256:1,512:2,>:4]",
        ),
        ("environment-value", f"{ALLOC}=expandable_segments", f"{ALLOC}="),
        (
            "allocator-conflict",
            f"{ALLOC}=expandable_segments:True,max_split_size_mb:64",
            f"{ALLOC}=max_split_size_mb:64",
        ),
        (
            "allocator-conflict",
            f"{ALLOC}=expandable_segments:True,garbage_collection_threshold:0.8",
            f"{ALLOC}=expandable_segments:False,garbage_collection_threshold:0.8",
        ),
        (
            "ignored-variable",
            f"{ALLOC}=page_size:1g,segment_size_mb:64",
            f"{ALLOC}=segment_size_mb:64",
        ),
        (
            "ignored-variable",
            f"{ALLOC}=pin_memory_expandable_segments:True,pinned_max_cached_size_mb:9",
            f"{ALLOC}=pinned_max_cached_size_mb:9",
        ),
        (
            "ignored-variable",
            "TASK_QUEUE_ENABLE=2;ASCEND_LAUNCH_BLOCKING=1",
            "TASK_QUEUE_ENABLE=0;ASCEND_LAUNCH_BLOCKING=1",
        ),
        (
            "ignored-variable",
            "HCCL_OP_EXPANSION_MODE=AIV;HCCL_EXEC_TIMEOUT=1836",
            "HCCL_OP_EXPANSION_MODE=AIV;HCCL_EXEC_TIMEOUT=1091",
        ),
        (
            "ignored-variable",
            "HCCL_OP_EXPANSION_MODE=AIV;HCCL_EXEC_TIMEOUT=0",
            "HCCL_EXEC_TIMEOUT=0",
        ),
        ("ignored-variable", "CPU_AFFINITY_CONF=0,npu0:0-3", "CPU_AFFINITY_CONF=2,npu0:0-3"),
        ("ignored-variable", "CPU_AFFINITY_CONF=1,npu0:0-16", "CPU_AFFINITY_CONF=1,npu0:0-15"),
    ],
)
def test_a_variable(rule: str, bad: str, good: str) -> None:
    (finding,) = found(bad)
    assert finding.rule == rule
    assert finding.parameter is not None
    assert finding.parameter in bad
    assert finding.parameter in finding.message
    assert found(good) == []


def test_every_row_of_the_table_has_its_default_among_what_it_takes() -> None:
    for row in VARIABLES:
        assert row.fits(row.default) or row.default == "that of the product"
        assert not row.fits("")
        assert not row.fits("x")


def test_a_list_that_is_cut_off_is_reported_with_what_is_left_of_it() -> None:
    assert visible_devices("1, 2,3") == [1]
    assert visible_devices("0,1,2") == [0, 1, 2]
    (finding,) = found("ASCEND_RT_VISIBLE_DEVICES=1, 2,3")
    assert "cut off before `, 2,3`: the NPUs that are left are 1" in finding.message
    assert finding.help is not None
    assert finding.help.endswith("ASCEND_RT_VISIBLE_DEVICES=1,2,3")
    (finding,) = found("ASCEND_RT_VISIBLE_DEVICES=1,3,8")
    assert "left 1, 3" in finding.message
    # a machine without NPUs does not know
    assert found("ASCEND_RT_VISIBLE_DEVICES=1,3,8", npus=0) == []


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("version-mismatch", {"torch": Torch("2.12.1+cpu", None)}),
        ("version-mismatch", {"torch": Torch("2.130.0", None)}),
        ("two-accelerators", {"torch": Torch("2.13.0", "cuda")}),
        ("cann-not-found", {"cann": Cann(None, {}, ("ASCEND_HOME_PATH is not set",))}),
        (
            "version-mismatch",
            {"cann": Cann(Path("/cann"), {"toolkit": "8.5.0", "kernels": "8.3.RC1"})},
        ),
    ],
)
def test_packages(rule: str, bad: dict[str, object]) -> None:
    from dataclasses import replace

    (finding,) = check_packages(replace(FINE, **bad))
    assert finding.rule == rule
    assert list(check_machine(FINE)) == []
    assert list(check_machine(replace(FINE, torch=Torch("2.13.0.post1", None)))) == []
    without = replace(FINE, torch_npu=None, **bad)
    # nothing stands against a machine for something else …
    assert list(check_packages(without)) == []
    # … and nothing has passed
    assert set(unanswered_rules(without).values()) == {"torch_npu is not installed here"}


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        ("not-on-npu", "model.dtype=float64", "model.dtype=bfloat16"),
        ("forked-workers", "data.workers=2", "data.workers=0"),
        ("npu-mask-convention", "engine=megatron", "engine=fsdp2"),
        ("device-missing", "launch.nproc=3", "launch.nproc=2"),
    ],
)
def test_settings(rule: str, bad: str, good: str) -> None:
    from dataclasses import replace

    machine = replace(FINE, environment={"ASCEND_RT_VISIBLE_DEVICES": "4,5"})
    for override, expected in ((bad, [rule]), (good, [])):
        loaded = load_run("digits", [override])  # on no NPU, where all of these go
        assert [
            finding.rule for finding in check_settings(loaded.run, loaded.origins, machine)
        ] == expected


def install(
    site: Path, name: str, version: str, requires: str = "", accelerator: str | None = None
) -> None:
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *([f"Requires-Dist: {requires}"] if requires else []),
    ]
    (about / "METADATA").write_text("\n".join(lines) + "\n")
    if name == "torch":
        (site / "torch").mkdir()
        (site / "torch/version.py").write_text(
            f"raise ImportError\n__version__ = {version!r}\ncuda: str = {accelerator!r}\nhip ="
            " None\n"
        )


def test_a_machine_is_read_from_metadata_and_files(tmp_path: Path) -> None:
    site, home, devices = tmp_path / "site", tmp_path / "cann", tmp_path / "dev"
    install(site, "torch", "2.13.0", accelerator="12.8")
    install(site, "torch_npu", "2.13.0.post1", requires="torch==2.13.0.*")
    for folder in (home / "aarch64-linux", home / "runtime", home / "opp", devices):
        folder.mkdir(parents=True)
    (home / "aarch64-linux/ascend_toolkit_install.info").write_text(
        "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=aarch64\n"
    )
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (devices / name).touch()
    variables = {"ASCEND_HOME_PATH": str(home), "ASCEND_OPP_PATH": str(home / "opp")}
    machine = read_machine(variables, [str(site)], devices)
    assert machine.torch == Torch("2.13.0", "cuda")
    assert (machine.torch_npu, machine.wanted_torch, machine.npus) == (
        "2.13.0.post1",
        "==2.13.0.*",
        2,
    )
    assert machine.cann.packages == {"Ascend-cann-toolkit": "8.5.0"}
    assert machine.cann.problems == (f"{home / 'compiler'} is not there",)
    nothing = read_machine({}, [str(tmp_path / "empty")], tmp_path / "empty")
    assert (nothing.torch, nothing.torch_npu, nothing.npus) == (None, None, 0)


def test_a_recipe_for_an_npu_is_checked_with_the_variables_that_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "7")
    assert examine("digits").findings == ()  # of another device, nobody asks
    examined = examine("digits", ["device.kind=npu"])
    assert [finding.rule for finding in examined.findings] == ["environment-value"]
    assert examined.checks["environment-value"] == "failed"
    assert examined.checks["allocator-conflict"] == "passed"
    bound = ["device.kind=npu", "device.numa=node", "launch.nproc=2", "data.micro_batch_size=16"]
    for given, rules in (("2", ["launch-conflict"]), ("1", []), ("", [])):
        monkeypatch.setenv("CPU_AFFINITY_CONF", given)
        found = [one.rule for one in examine("digits", bound).findings if "VT2" in one.code]
        assert found == rules, given
    unsound = examine("digits", ["device.kind=npu", "model.dtype=half"])
    assert {"unknown-choice", "environment-value"} == {finding.rule for finding in unsound.findings}
    assert unsound.checks["not-on-npu"] == "not-run"
