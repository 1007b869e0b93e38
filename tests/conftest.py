"""Settings that hold for every test: the environment `vtool` starts with, and one process state.

A test finds the process as the one before it found it: threads, default dtype, determinism,
attention functions, environment, working directory, signal handlers and modules are put back, and
generators are seeded again. With `--fail-on-leaks` (`make test-all`) a test that leaves one of them
changed fails.
"""

import compileall
import gc
import inspect
import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from xdist.scheduler import LoadScopeScheduling

from tests import process_state
from tests.shared_runs import SHORT, made_once

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read by OpenMP when torch is imported. Tests compute with one thread on every machine: the order
# of sums does not depend on the number of cores, and two workers do not spin against each other.
os.environ["OMP_NUM_THREADS"] = "1"
# A recipe's `device.kind: auto` would take a GPU, and two ranks want one each: tests are of the CPU
# on every machine, but for those of `make test-gpu`.
if os.environ.get("VTOOL_TESTS_ON_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# A shell's background job ignores Ctrl-C, and nohup a closed terminal: so would all that tests
# start and then signal.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# A command is built of its functions' signatures: 25 ms, at each call of a test.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

pytest_plugins = ["pytester"]
MANY_MODULES = 100
"""Modules that a test imports, as a large package, above which they are left out of collections."""
_CACHE = tempfile.TemporaryDirectory(prefix="vtool-tests-")
# audits are kept in the user's cache folder, and no test may find another's
os.environ["XDG_CACHE_HOME"] = _CACHE.name
# What tests and all that they start leave in the temporary folder goes with it; pytest's own
# folders, where one looks after a failure, stay where they are.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_LEFT = tempfile.TemporaryDirectory(prefix="vtool-tests-", ignore_cleanup_errors=True)
os.environ["TMPDIR"] = tempfile.tempdir = _LEFT.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-leaks",
        action="store_true",
        help="fail a test that leaves threads, environment, handlers … of the process changed",
    )
    parser.addoption(
        "--file-budget", type=float, default=0.0, help="seconds above which a file is named"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Compile vtool once: each worker, and each command that a test starts, would."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "vtool", quiet=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests with a time limit of their own first: late, all workers but one would wait."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_collection_finish() -> None:
    """Write no bytecode once tests run; what they are collected from is written.

    Where a test lets writes fail, Python would leave half of a module's bytecode next to it: it
    does not look at how much was written, and whoever imports the module next fails.
    """
    sys.dont_write_bytecode = True
    # for what tests start; set before, it would hold for the workers, which would not keep what
    # pytest makes of the files of tests: 6 s of CPU time for each
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    _leave_imports_out_of_collections()


def _leave_imports_out_of_collections() -> None:
    """Keep the millions of objects of imported packages from being looked through again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _process_state(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put back what a test changes in the process, and seed what it draws from."""
    process_state.seed(0)
    before = process_state.snapshot()
    yield
    after = process_state.snapshot()
    leaks = process_state.differences(before, after)
    process_state.restore(before)
    if len(after.modules) > len(before.modules) + MANY_MODULES:
        _leave_imports_out_of_collections()
    if leaks and request.config.getoption("--fail-on-leaks"):
        pytest.fail("left behind: " + "; ".join(leaks), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Put back what a fixture of a module or a session changes, as a test's own is.

    A generator may hold a variable or a directory on purpose until its end: of such a fixture only
    torch's and transformers' state is put back.
    """
    if fixturedef.scope == "function":
        return (yield)
    process_state.seed(0)
    before = process_state.snapshot()
    try:
        return (yield)
    finally:
        holds = inspect.isgeneratorfunction(fixturedef.func)
        process_state.restore(before, numerics_only=holds)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Train `digits` for 40 steps: the folder with `runs/digits` in it, and what was printed.

    Tests only add to the folder, under names of their own.
    """
    from tests.commands import vtool  # imports the command line, which not every test needs

    command = ("train", "sft", "digits", *SHORT)
    return made_once(tmp_path_factory, "digits", lambda folder: vtool(folder, *command))


@pytest.fixture
def no_process_group() -> None:
    """End the process group of one that an engine of an earlier test has left, as a run does.

    A plan starts one of its own, of ranks that are not there.
    """
    process_state.end_process_group()


@pytest.fixture
def gpu() -> Any:
    """A CUDA device; without one, or without `make test-gpu`, the test is not run."""
    import torch  # costs seconds, and not every worker's tests need it

    if not torch.cuda.is_available():
        pytest.skip("not run: there is no CUDA device, or this is not `make test-gpu`")
    return torch.device("cuda", 0)


class _SharedFixturesTogether(LoadScopeScheduling):
    """Hand out tests one by one, but those of a file with a fixture of the module together.

    Not xdist's own groups: 3.8 writes them into an attribute that pytest 9.2 no longer has, and so
    makes an expensive fixture once for each worker.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _shares_fixtures(self.config.rootpath / file) else nodeid


@cache
def _shares_fixtures(file: Path) -> bool:
    return re.search(r'scope="(module|class)"', file.read_text("utf-8")) is not None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the tests to the workers."""
    return _SharedFixturesTogether(config, log)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the files that take longer than a file may (docs/testing.md)."""
    budget = config.getoption("--file-budget")
    spent: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                spent[file] = spent.get(file, 0.0) + report.duration
    over = {file: seconds for file, seconds in spent.items() if budget and seconds > budget}
    for file, seconds in sorted(over.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"over its budget of {budget:.0f} s: {file} ({seconds:.0f} s)")
