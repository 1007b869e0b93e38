"""Chat templates are programs of others: what takes too long or too much is a finding."""

import os
import signal
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.limited_child import TooCostly, limited_child
from vtool.models.template_limits import LimitedTemplate
from vtool.models.tokenizer import chat_template, train_tokenizer
from vtool.template_renderer import _CHILD, LimitedRendering, today
from vtool.watch.turns import find_turns

CHAT = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
MILLION = "{% for i in range(100000) %}{% for j in range(100000) %}"
COSTLY = {
    "a loop of 10^10": MILLION + "{% endfor %}{% endfor %}",
    "a loop that writes": MILLION + "x{% endfor %}{% endfor %}",
    "calls of calls": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a power": "{{ 10 ** (10 ** 10) }}",
    "a power of the row": "{{ (messages | length) ** (10 ** 10) }}",
    "a product of numbers": (
        "{% set ns = namespace(n=10) %}{% for i in range(100) %}{% set ns.n = ns.n * ns.n %}"
        "{% endfor %}"
    ),
    "a text repeated": "{{ 'x' * 10 ** 10 }}",
    "a text of the row repeated": "{{ 10 ** 10 * messages[0].content }}",
    "a list repeated": "{{ ([1] * 10 ** 10) | length }}",
    "a text that is doubled": (
        "{% set ns = namespace(t='x' * 1000) %}{% for i in range(40) %}{% set ns.t = ns.t + ns.t %}"
        "{% endfor %}"
    ),
    "a text that is joined to itself": (
        "{% set ns = namespace(t='x' * 1000) %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}"
        "{% endfor %}"
    ),
    "a wide text": "{{ 'x' | center(10000000000) }}",
    "a wide method": "{{ 'x'.ljust(10000000000) }}",
    "a method by another name": "{{ ('x' | attr('rjust'))(10000000000) }}",
    "zeros": "{{ 'x'.zfill(10000000000) }}",
    "a percent format": "{{ '%10000000000d' % 1 }}",
    "a percent format with a star": "{{ '%*d' % (10000000000, 1) }}",
    "the filter format": "{{ '%10000000000d' | format(1) }}",
    "a format": "{{ '{:10000000000}'.format(1) }}",
    "a format in a format": "{{ '{:{}}'.format(1, 10000000000) }}",
    "a format of a mapping": "{{ '{a:10000000000}'.format_map({'a': 1}) }}",
    "indents": "{{ ('a\n' * 1000000) | indent(9999) }}",
    "tabs": "{{ ('\t' * 1000000).expandtabs(9999) }}",
    "replacements": "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
    "a method that replaces": "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "a filter that joins": "{{ range(100000) | list | join('y' * 1000000) }}",
    "a method that joins": "{{ ('y' * 1000000).join(['a'] * 100000) }}",
    "a filter by map": "{{ ['x'] | map('center', 10000000000) | list }}",
    "lorem ipsum": "{{ lipsum(n=1000000) }}",
    "a list that is doubled": (
        "{% set ns = namespace(l=[1] * 1000) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}"
        "{% endfor %}"
    ),
    "doubled lists that are compared": (
        "{% set ns = namespace(a=[], b=[]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}"
    ),
    "doubled lists that are sorted": (
        "{% set ns = namespace(a=[]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% endfor %}{{ [ns.a, ns.a] | sort }}"
    ),
    "doubled lists as JSON": (
        "{% set ns = namespace(a=[1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% endfor %}{{ ns.a | tojson }}"
    ),
    "doubled lists as text": (
        "{% set ns = namespace(a=[1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% endfor %}{{ ns.a }}"
    ),
    "batches": "{{ [1] | batch(10000000000, 1) | list }}",
    "slices": "{{ [1] | slice(10000000000) | list }}",
}


@cache
def tokenizer() -> Any:
    return train_tokenizer(["a b c"], load_family("qwen2_5_vl").facts.token_names)


def rendered(template: str) -> Any:
    return tokenizer().apply_chat_template(CHAT, tokenize=False, chat_template=template)


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_template_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered("what is imported for a first template is not the template's own time")
    monkeypatch.setattr("vtool.template_renderer._SECONDS", 0.3)
    with pytest.raises(TooCostly), LimitedTemplate():
        rendered(COSTLY[name])


HEALTHY = {
    **{name: chat_template(load_family(name).facts.token_names) for name in FAMILIES},
    "formats": "{{ '%s %5d %r' % ('a', 7, 10000000) }}{{ '{:>8}'.format('a') }}{{ 2 ** 10 * 3 }}",
    "numbers": "{{ 20250101 + 1 }}{{ '{}'.format(20250101) }}{{ '%d' | format(123456789) }}",
    "filters": (
        "{{ messages | tojson(indent=4) | indent(2) }}{{ 'a' | center(80) }}"
        "{{ 'ab'.replace('a', '') }}{{ messages | map(attribute='content') | join(', ') }}"
        "{{ '-' * 80 }}"
    ),
    "generation": (
        "{% for m in messages %}{% generation %}{{ m['role'] + m['content'] | trim }}"
        "{% endgeneration %}{% endfor %}"
    ),
    "controls": (
        "{% set ns = namespace(seen=false) %}{% for m in messages[::-1] %}{% if loop.first %}"
        "{% continue %}{% endif %}{% set ns.seen = true %}{{ m.content.split(' ')[-1] }}{% break %}"
        "{% endfor %}{{ ns.seen }}{{ strftime_now('%Y') }}{{ dict(a=1) }}"
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_template_writes_what_it_writes_without_limits(name: str) -> None:
    with LimitedTemplate():
        limited = rendered(HEALTHY[name])
    assert limited == rendered(HEALTHY[name])
    assert limited


def test_the_sandbox_stays_one() -> None:
    escape = "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}"
    with pytest.raises(Exception, match=r"unsafe|not safely|__mro__|append"), LimitedTemplate():
        rendered(escape)


def test_a_template_that_is_refused_by_itself_is_no_costly_one() -> None:
    with pytest.raises(Exception, match="roles must alternate") as caught, LimitedTemplate():
        rendered("{{ raise_exception('roles must alternate') }}")
    assert not isinstance(caught.value, TooCostly)


def test_a_row_of_very_many_answers_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is cheap to render, with all that is before it: together they take the square."""
    monkeypatch.setattr("vtool.template_renderer.SECONDS_OF_ROW", 0.5)
    rendered("{{ messages }}")

    def answers(times: int) -> None:
        for _ in range(times):
            rendered("{% for i in range(30000) %}x{% endfor %}")

    with pytest.raises(TooCostly, match="for each answer"), LimitedTemplate():
        answers(10_000)
    for _ in range(2):  # each row has its own time
        with LimitedTemplate():
            answers(10)


def test_a_template_is_given_the_day_on_which_the_process_has_begun() -> None:
    """A run that resumes after midnight has the rows that were audited."""
    tokenizer = train_tokenizer(["a b"], load_family("qwen2_5_vl").facts.token_names)
    tokenizer.chat_template = "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"
    with LimitedTemplate():
        texts = {tokenizer.apply_chat_template(CHAT, tokenize=False) for _ in range(3)}
    assert texts == {today().strftime("%Y-%m-%d 00:00:00.000000")}


def test_a_renderer_that_somebody_kills_is_started_again() -> None:
    with LimitedTemplate():
        first = rendered("{{ messages[0].content }}")
        process = limited_child(_CHILD).process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        assert rendered("{{ messages[0].content }}") == first == "a b"
    assert process.returncode == -signal.SIGKILL


def test_after_a_ctrl_c_the_next_chat_is_not_given_the_text_of_the_one_before() -> None:
    loops = "{% for i in range(20) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    slow = loops + "{{ messages[0].content }}"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        with LimitedTemplate():
            rendered("x")  # it is there
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                rendered(slow)
            assert rendered("{{ messages[1].content }}") == "c"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_forked_process_has_a_renderer_of_its_own() -> None:
    with LimitedTemplate():
        rendered("x")
        process = limited_child(_CHILD).process
        child = os.fork()
        if child == 0:
            other = rendered("{{ messages[0].content }}") == "a b"
            os._exit(0 if other and limited_child(_CHILD).process.pid != process.pid else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert rendered("{{ messages[1].content }}") == "c"
    assert limited_child(_CHILD).process is process


@pytest.mark.parametrize(
    "template",
    ["{% set ns = namespace(_a=1) %}", "{{ dict.fromkeys.__self__ }}", "{{ dict.__class__ }}x"],
)
def test_what_transformers_refuses_is_refused(template: str) -> None:
    said = []
    for context in (nullcontext(), LimitedTemplate()):
        with context:
            try:
                said.append(rendered(template))
            except Exception as error:
                said.append(type(error))
    assert said[0] == said[1]


def test_the_watch_does_not_wait_for_a_template_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.template_renderer._SECONDS", 0.3)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(COSTLY["doubled lists that are compared"])
    assert "it runs for more than 0.3 seconds" in str(find_turns(tmp_path))


def test_a_template_that_was_stopped_costs_less_when_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vtool.template_renderer._SECONDS", 0.4)
    monkeypatch.setattr("vtool.template_renderer._SECONDS_AGAIN", 0.2)
    template = LimitedRendering(COSTLY["a loop of 10^10"] + "{# of this test #}")
    for seconds in (0.4, 0.2, 0.2):
        with pytest.raises(TooCostly, match=f"it runs for more than {seconds} seconds"):
            template.render(messages=CHAT)
