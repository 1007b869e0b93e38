"""References mean what OmegaConf says, which is the oracle wherever it does not hang."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from vtool.config.load import load_run
from vtool.config.references import resolve_references
from vtool.diagnostics import Findings

VALUES: dict[str, Any] = {
    "a": {"b": 1, "c": [1, {"d": "x"}], "e": "text", "n": None, "open": "???"},
    "name": "b",
    "g": {"x": "${a.b}", "y": [2]},
    "far": "${a.c}",
}


@pytest.mark.parametrize(
    "text",
    [
        "${a.b}",
        "${a}",
        "${a.c}",
        "${a.c[1].d}",
        "${a.c.0}",
        "${a[b]}",
        "${far[1].d}",
        "${far}",
        "${a.${name}}",
        "x${a.b}y${a.e}",
        "${a.n}",
        "x${a.n}",
        "${a.c}!",
        "${.name}",
        "${name}",
        r"\${a.b}",
        r"\\${a.b}",
        "${oc.env:SET}",
        "${oc.env:NOT_SET,fallback}",
        "${oc.env:NOT_SET,null}",
        "${oc.env:NOT_SET,3}",
        "${oc.decode:${oc.env:NUMBER}}",
        "${oc.decode:'[1, ${a.b}]'}",
        "${oc.decode:null}",
        "${oc.create:{x: ${a.b}, y: [2]}}",
        "${oc.select:a.b}",
        "${oc.select:a.z,7}",
        "${oc.select:a.z}",
        "${oc.select:a.open,8}",
        "${oc.dict.keys:g}",
        "${oc.dict.values:g}",
        "${oc.deprecated:a.b}",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_leads_where_omegaconf_says(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "${a.b} as it is")
    monkeypatch.setenv("NUMBER", "1e-3")
    values = VALUES | {"given": text}
    expected = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    followed = resolve_references(values)
    assert (followed.values, dict(followed.broken)) == (expected, {})


@pytest.mark.parametrize(
    "text",
    [
        "${nothing}",
        "${a.b.c}",
        "${a.open}",
        "${given}",
        "${..name}",
        "${now:%Y}",
        "${oc.env:NOT}",
        "${a.c[7]}",
        "${a.${a.b}}",
        "${oc.env:}",
        "${oc.dict.keys:name}",
        "${oc.decode:${a.c}}",
    ],
)
def test_leads_nowhere_where_omegaconf_raises(text: str) -> None:
    values = VALUES | {"given": text, "after": "${given}"}
    with pytest.raises(Exception):  # noqa: B017, PT011  (OmegaConf raises many kinds)
        OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    followed = resolve_references(values)
    assert list(followed.broken) == [("given",)]
    assert followed.values["given"] is followed.values["after"] is None


def test_a_circle_is_reported_once_and_at_its_beginning() -> None:
    followed = resolve_references({"a": "${b}", "b": "x${c}", "c": "${a}", "d": {"e": "${d}"}})
    assert {place: "itself" in why for place, why in followed.broken.items()} == {
        ("a",): True,
        ("d", "e"): True,
    }


def test_what_leads_into_a_circle_is_not_reported_beside_it() -> None:
    followed = resolve_references({"x": "${a}", "a": "${b}", "b": "${a}", "y": "${x}"})
    assert dict(followed.broken) == {("a",): "itself, at once or by way of others"}


def test_a_chain_that_omegaconf_cannot_follow_is_reported_once() -> None:
    chain = {f"a{number}": f"${{a{number + 1}}}" for number in range(300)} | {"a300": 1}
    (why,) = resolve_references(chain).broken.values()
    assert why == "too many references one after the other"


def test_many_references_are_followed_with_the_variables_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET", "mine")
    (tmp_path / "r.yaml").write_text(
        f"defaults: [digits, _self_]\nrun: {{name: '{'${oc.env:SET}' * 20}'}}\n"
    )
    assert load_run(str(tmp_path / "r.yaml")).run.run.name == "mine" * 20


@pytest.mark.parametrize(
    ("written", "help"),
    [
        ("${DATA_ROOT}/rows", "an environment variable is ${oc.env:DATA_ROOT}"),
        ("${env:DATA_ROOT}/rows", "an environment variable is ${oc.env:NAME}"),
    ],
)
def test_a_variable_as_others_write_it_is_answered_with_how_it_is_written(
    written: str, help: str
) -> None:
    with pytest.raises(Findings) as caught:
        load_run("digits", [f"run.dir={written}"])
    (found,) = caught.value.diagnostics
    assert (found.rule, found.help) == ("broken-reference", help)
