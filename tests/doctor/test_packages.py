"""The packages that vtool requires, and what is found of those that are not there."""

import pytest
from packaging.requirements import Requirement

from vtool.doctor.packages import RequiredPackage, package_problems


@pytest.mark.parametrize(
    ("extra", "version", "rule", "help"),
    [
        (None, None, "package-missing", "pip install 'pydantic~=2.0'"),
        ("megatron", None, "extra-not-installed", "pip install 'vtool[megatron]'"),
        (None, "1.10", "version-mismatch", "pip install 'pydantic~=2.0'"),
        (None, "2.7", None, ""),
    ],
)
def test_a_package_that_is_missing_or_does_not_fit_is_reported_with_its_command(
    extra: str | None, version: str | None, rule: str | None, help: str
) -> None:
    package = RequiredPackage(Requirement("pydantic~=2.0"), extra, version)
    found = list(package_problems([package]))
    assert [finding.rule for finding in found] == ([rule] if rule else [])
    assert [finding.help for finding in found] == ([help] if rule else [])
