"""Facts travel as JSON, and a probe of another version is refused."""

import json

import pytest

from vtool.loading.probe.facts import (
    About,
    CheckFacts,
    Done,
    Event,
    Finished,
    Item,
    ProbeRequest,
    Ready,
    SubjectFacts,
    Unusable,
    facts_line,
    parse_facts,
    read_event,
    read_probe_request,
)

ITEM = Item("differs", "w", ("a", "b"), "1", "2", "runai", "lossy-cast", "f.py", 3, ("c",), ("d",))
CHECK = CheckFacts((ITEM,), {"tensors": 2, "sources": {"runai": "x"}}, None, {"p": "protected"})
ABOUT = About("m.C", replaced=("norm",), files={"a": "1"}, fields={"n": 4})
FACTS = SubjectFacts(
    "judged", "", "twin", False, ABOUT, {"lossy-cast": CHECK}, {"q": "unprotected"}
)
FINISHED = Finished("A", 1.5, 2**20, FACTS)
EVENTS: list[Event] = [
    Ready("vllm", "1", "2", 0.5, ("A", "B"), ("A",)),
    Unusable("no torch"),
    FINISHED,
    Done(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    assert read_event(facts_line(event)) == event


def test_facts_and_requests_are_read_as_they_were_written() -> None:
    request = ProbeRequest("python", None, ("lossy-cast",), ("owned",), checkpoint="/x")
    assert parse_facts(facts_line(FACTS)) == FACTS
    assert read_probe_request(facts_line(request)) == request


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), "Finished"),
        (("facts",), "SubjectFacts"),
        (("facts", "about"), "About"),
        (("facts", "checks", "lossy-cast"), "CheckFacts"),
        (("facts", "checks", "lossy-cast", "items", 0), "Item"),
    ],
)
def test_unknown_and_missing_keys_name_the_version(path: tuple[str | int, ...], name: str) -> None:
    values = json.loads(facts_line(FINISHED))
    place = values
    for key in path:
        place = place[key]
    gone = next(key for key in place if key != "event")
    del place[gone]
    place["newer"] = 1
    words = f"{name} is of another version of vtool: unknown newer; missing {gone}$"
    with pytest.raises(ValueError, match=words):
        read_event(json.dumps(values))


def test_a_host_that_says_more_than_a_report_shows_is_an_error() -> None:
    with pytest.raises(TypeError, match="weather"):
        About("m.C", weather="fine")  # type: ignore[call-arg]


def test_an_event_of_another_version_is_no_event() -> None:
    with pytest.raises(ValueError, match="`started`, which is no event of this version"):
        read_event('{"event": "started"}')
