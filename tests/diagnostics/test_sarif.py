"""SARIF 2.1.0: what its schema, and GitHub's code scanning on top of it, ask for."""

import io
import json
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from vtool.diagnostics import RULES, Diagnostic, Origin
from vtool.diagnostics.render import render_results
from vtool.diagnostics.result import Result

FINDINGS = (
    Diagnostic(
        "unknown-key",
        "there is no `lrr`",
        "did you mean `lr`?",
        "optim.lrr",
        Origin("my configs/mine#1.yaml", 2, 3),
    ),
    Diagnostic("ignored-setting", "no effect", origin=Origin("command line")),
    Diagnostic(
        "nonfinite-value",
        "NaN",
        origin=Origin("/models/a/model.safetensors"),
        tensors=("a", "b"),
        seen="1 NaN",
    ),
    Diagnostic("no-config", "none"),
)
RESULTS = (
    Result(
        "vllm:BertModel",
        "unsafe",
        {"unknown-key": "failed", "bad-header": "not-run"},
        FINDINGS,
        {"bad-header": {"reason": "no file"}},
    ),
    Result("digits", "clean", {"unknown-key": "passed"}),
)


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    stream = io.StringIO()
    render_results(RESULTS, "sarif", command="load-check", stream=stream)
    log = json.loads(stream.getvalue())
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (only,) = log["runs"]
    return only


def test_a_rule_is_described_once_and_results_point_at_it(run: dict[str, Any]) -> None:
    rules = run["tool"]["driver"]["rules"]
    ids = [rule["id"] for rule in rules]
    assert len(ids) == len(set(ids))
    assert {rule["name"] for rule in rules} == {
        "unknown-key",
        "bad-header",
        "ignored-setting",
        "nonfinite-value",
        "no-config",
    }
    assert all(
        rule["shortDescription"]["text"]
        and rule["fullDescription"]["text"]
        and rule["help"]["text"]
        for rule in rules
    )
    assert all(
        rule["defaultConfiguration"]["level"] == RULES[rule["name"]].severity for rule in rules
    )
    for result, finding in zip(run["results"], FINDINGS, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] == finding.severity
        assert result["message"]["text"].startswith(finding.message)


def test_every_result_has_a_place_that_is_a_uri(run: dict[str, Any]) -> None:
    uris = []
    for result in run["results"]:
        (location,) = result["locations"]
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9._~:/%-]+", uri)
        uris.append(uri)
    assert unquote(uris[0]) == "my configs/mine#1.yaml"
    assert urlsplit(uris[0]).fragment == ""
    assert uris[1] == uris[3] == "vllm%3ABertModel"
    assert uris[2] == "file:///models/a/model.safetensors"
    first = run["results"][0]["locations"][0]
    assert first["physicalLocation"]["region"] == {"startLine": 2, "startColumn": 3}
    assert first["logicalLocations"] == [{"fullyQualifiedName": "optim.lrr"}]
    assert all(
        "region" not in result["locations"][0]["physicalLocation"] for result in run["results"][1:]
    )


def test_what_was_not_run_is_said(run: dict[str, Any]) -> None:
    (invocation,) = run["invocations"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == "vllm:BertModel: bad-header was not run: no file"
    assert (
        run["tool"]["driver"]["rules"][notification["associatedRule"]["index"]]["id"]
        == notification["associatedRule"]["id"]
        == "VT414"
    )
    assert invocation["executionSuccessful"] is True


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_fingerprints_tell_findings_apart(run: dict[str, Any], version: str) -> None:
    prints = [result["partialFingerprints"][f"vtoolFinding/{version}"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in prints)


def test_no_result_at_all_was_no_success() -> None:
    stream = io.StringIO()
    render_results(
        [Result("digts", "not-run", {}, (Diagnostic("unknown-recipe", "x"),))],
        "sarif",
        command="verify",
        stream=stream,
    )
    assert (
        json.loads(stream.getvalue())["runs"][0]["invocations"][0]["executionSuccessful"] is False
    )
