"""What ranks say to each other, on two processes."""

from tests.engines.ranks import run_ranks
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks


def _raised(ranks: Ranks) -> tuple[str, str, bool]:
    """What is raised on a rank where the first one's work ends with a finding."""

    def work() -> None:
        raise Findings(Diagnostic("not-a-run", "of the first rank"), fatal=True)

    try:
        ranks.on_rank_zero(work)
    except Findings as findings:
        return type(findings).__name__, findings.diagnostics[0].message, findings.fatal
    return "", "", False


def test_a_finding_of_the_first_rank_is_known_as_shared_on_all_so_that_one_speaks() -> None:
    assert run_ranks(_raised, 2) == [("SharedFindings", "of the first rank", True)] * 2
