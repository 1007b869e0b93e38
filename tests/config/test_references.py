"""References mean what OmegaConf says, which is the oracle wherever it does not hang."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from vtool.config.load import load_run
from vtool.config.references import masked, resolve_references, unmasked
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


def test_a_variable_that_is_not_read_is_reported_of_all_that_depend_on_it() -> None:
    values = {"a": "${oc.env:X}", "b": "${a}!", "c": {"d": "${oc.env:Y,1}"}, "e": "${c}", "f": 1}
    followed = resolve_references(values, read_environment=False)
    assert set(followed.unread) == {("a",), ("b",), ("c", "d"), ("e",)}
    assert followed.values["b"] == "${a}!"


def test_what_is_masked_is_no_reference_to_omegaconf_and_comes_back() -> None:
    values = {"a": ["${b}", {"c": "x${d}"}], "e": 1}
    hidden = OmegaConf.create(masked(values))
    assert unmasked(OmegaConf.to_container(hidden, resolve=True)) == values


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
