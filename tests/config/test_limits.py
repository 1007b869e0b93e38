"""A recipe larger than any real one is a finding, before time and memory are spent on it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config import limited
from vtool.config.load import examine
from vtool.diagnostics import Findings

HEAD = "defaults: [digits]\n"


def chained(value: str, link: str, count: int = 40) -> str:
    """A text whose every line refers twice to the one before it."""
    lines = [f"a0: {value}"]
    lines += [f"a{number}: {link.replace('@', f'a{number - 1}')}" for number in range(1, count)]
    return HEAD + "\n".join(lines) + "\n"


TOO_LARGE: dict[str, tuple[Callable[[], str], str]] = {
    "texts that double": (lambda: chained("xxxxxxxxxx", '"${@}${@}"'), "broken-reference"),
    "lists that double": (lambda: chained("[x, x]", '["${@}", "${@}"]'), "broken-reference"),
    "groups that double": (
        lambda: chained("{b: x}", '{b: "${@}", c: "${@}"}'),
        "broken-reference",
    ),
    "lists that are created": (
        lambda: chained("x", '"${oc.create:[${@},${@}]}"'),
        "broken-reference",
    ),
    "selected": (
        lambda: chained("xxxxxxxxxx", '"${oc.select:@}${oc.select:@}"'),
        "broken-reference",
    ),
    "a chain of references": (
        lambda: HEAD + "".join(f'a{n}: "${{a{n + 1}}}"\n' for n in range(300)) + "a300: 1\n",
        "broken-reference",
    ),
    "a reference in a reference": (
        lambda: HEAD + 'a: "' + "${oc.decode:" * 100 + "1" + "}" * 100 + '"\n',
        "broken-reference",
    ),
    "a long reference": (lambda: HEAD + f'a: "{"${optim.lr}" * 500}"\n', "broken-reference"),
    "many broken references": (
        lambda: HEAD + "".join(f'a{n}: "${{nope{n}}}"\n' for n in range(900)),
        "broken-reference",
    ),
    "a digit after the other": (lambda: HEAD + f"train: {{steps: {'9' * 5000}}}\n", "bad-yaml"),
    "in base 60": (lambda: HEAD + f"train: {{steps: {'9:' + '59:' * 3000}59}}\n", "bad-yaml"),
    "a long name": (lambda: HEAD + f"? {'a' * 10_000}\n: 1\n", "unknown-key"),
    "a long name in a defaults list": (lambda: f"defaults: [{'a' * 10_000}]\n", "unknown-recipe"),
    "a long group": (lambda: f"defaults: [/{'a' * 10_000}/b]\n", "unknown-group-choice"),
    "lists in lists": (lambda: HEAD + "a: " + "[" * 200_000 + "\n", "bad-yaml"),
    "groups in groups": (lambda: HEAD + "a: " + "{a: " * 300 + "1" + "}" * 300 + "\n", "bad-yaml"),
    "aliases in aliases": (
        lambda: (
            HEAD + "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 99))
        ),
        "bad-yaml",
    ),
    "aliases that double": (
        lambda: (
            HEAD
            + "a0: &a0 [1]\n"
            + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 29))
        ),
        "bad-yaml",
    ),
    "many keys": (lambda: HEAD + "".join(f"k{n}: 1\n" for n in range(20_000)), "bad-yaml"),
    "unknown keys": (lambda: HEAD + "".join(f"k{n}: 1\n" for n in range(1_500)), "unknown-key"),
    "a large file": (lambda: HEAD + f"run: {{name: {'x' * 2_000_000}}}\n", "bad-yaml"),
    "many defaults": (
        lambda: f"defaults: [{', '.join(f'/optim@x{n}: adamw' for n in range(900))}]\n",
        "bad-defaults-list",
    ),
    "defaults that double": (
        lambda: (
            "defaults:\n- /optim@a0: adamw\n"
            + "".join(
                f"- /optim@a{n}: ${{optim@a{n - 1}}}${{optim@a{n - 1}}}\n" for n in range(1, 40)
            )
        ),
        "bad-defaults-list",
    ),
}


MOST_CHECKS = 80
"""So many checks of `digits` the check of any text may cost; most cost fewer than eight.

What doubles would take longer than anybody waits. A bound in seconds fails on a busy machine.
"""


def check_digits() -> float:
    """Validate a healthy recipe, and return the seconds of the processor that this took."""
    began = time.process_time()
    assert CliRunner().invoke(app, ["validate-config", "digits"]).exit_code == 0
    return time.process_time() - began


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported() -> None:
    check_digits()


@contextmanager
def in_time() -> Iterator[None]:
    began = time.process_time()
    yield
    spent = time.process_time() - began
    assert spent < MOST_CHECKS * check_digits()


@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.parametrize("trusted", [pytest.param(True, marks=pytest.mark.full), False])
def test_is_a_finding(
    name: str, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limited, "SECONDS", 1.0)
    made, rule = TOO_LARGE[name]
    if name == "selected" and not trusted:
        rule = "not-looked-at"  # its resolvers are not called
    Path("mine.yaml").write_text(made())
    option = [] if trusted else ["--untrusted"]
    with in_time():
        done = CliRunner().invoke(
            app, ["validate-config", *option, "mine.yaml", "--format", "concise"]
        )
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2)
    assert rule in done.output
    assert len(done.output.splitlines()) < 150


def test_a_file_that_names_itself_twice_over_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        following = f"r{number + 1}"
        Path(f"r{number}.yaml").write_text(f"defaults: [{following}@a, {following}@b]\n")
    Path("r30.yaml").write_text("x: 1\n")
    with pytest.raises(Findings) as caught, in_time():
        examine("r0.yaml")
    assert caught.value.diagnostics[0].rule == "bad-defaults-list"


@pytest.mark.parametrize(
    "override",
    [
        f"train.steps={'9' * 5_000}",
        f"run.name={'[' * 2_000}",
        f"{'a' * 10_000}=1",
        f"{'.'.join('a' * 2_000)}=1",
        f"run.name={'x' * 1_000_000}",
        "run.name=" + "${a" * 2_000,
        f"optim={'a' * 10_000}",
        "data.train.99999999999999999999999=1",
    ],
    ids=lambda text: text[:20],
)
def test_an_argument_is_a_finding(override: str) -> None:
    with in_time():
        done = CliRunner().invoke(app, ["validate-config", "digits", override])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2)


@pytest.mark.parametrize("path", ["a" * 6_000, "a/" * 3_000, '"a\\0b"'])
def test_a_path_that_no_file_can_have_is_a_finding(path: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"{HEAD}model: {{path: {path}}}\ncheckpoint: {{resume: {path}}}\n"
        f"data: {{train: [{{format: messages, path: {path}}}]}}\n"
    )
    examined = examine(str(tmp_path / "mine.yaml"))
    assert [each.rule for each in examined.findings] == ["path-not-found"] * 3
    assert examined.checks["not-a-model-folder"] == "not-run"


@pytest.mark.parametrize(
    "value",
    ["!!bool x", "!!int x", "!!float x", "!!timestamp x", "{null: 1}", f"1{':59' * 2_000}.5"],
    ids=lambda text: text[:20],
)
def test_a_value_that_is_not_what_its_tag_says_is_a_finding(value: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{HEAD}a: {value}\n")
    with pytest.raises(Findings) as caught:
        examine(str(tmp_path / "mine.yaml"))
    assert caught.value.diagnostics[0].rule == "bad-yaml"
