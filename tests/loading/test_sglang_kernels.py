"""SGLang's kernels, where they are not installed."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vtool.loading.probe.sglang_kernels import stand_in_for_kernels


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of an SGLang of before 0.5.11, which has nothing but its utilities."""
    utils = tmp_path / "sglang/srt/utils"
    utils.mkdir(parents=True)
    for folder in (utils, utils.parent, utils.parent.parent):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    known = {name for name in sys.modules if name.partition(".")[0] in ("sglang", "sgl_kernel")}
    assert not known
    yield tmp_path
    for name in [one for one in sys.modules if one.partition(".")[0] in ("sglang", "sgl_kernel")]:
        del sys.modules[name]


def test_a_release_that_imports_them_is_imported_and_what_calls_them_fails(sglang: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sgl_kernel")
    stand_in_for_kernels()
    kernels = importlib.import_module("sgl_kernel.scalar_type")
    assert kernels.scalar_types.uint4b8  # named while modules are imported
    with pytest.raises(
        NotImplementedError, match=r"sgl_kernel\.scalar_type\.gemm is not installed"
    ):
        kernels.gemm(1)


def test_later_releases_and_an_installed_package_are_left_alone(sglang: Path) -> None:
    later = sglang / "sglang/srt/utils/hf_transformers"
    later.mkdir()
    (later / "__init__.py").touch()
    before = list(sys.meta_path)
    stand_in_for_kernels()
    assert sys.meta_path == before
    (later / "__init__.py").unlink()
    later.rmdir()
    (sglang / "sgl_kernel.py").write_text("gemm = 1")
    importlib.invalidate_caches()
    stand_in_for_kernels()
    assert sys.meta_path == before
    assert importlib.import_module("sgl_kernel").gemm == 1
