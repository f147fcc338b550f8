"""T17, T18: hostile templates end in an error within their limits, and others do not wait for them."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenon_core
from tenon_core.client.template_environment import make_environment
from tenon_core.client.templates import ChatTemplate, TemplateLimits
from tenon_platforms.errors import ConfigError, RequestError

pytestmark = pytest.mark.unit
HELLO = [{"role": "user", "content": "hi"}]
ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': ''}) }}",
    "{% set f = '{0.__class__.__mro__}'.format %}{{ f('') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ messages|groupby('__class__') }}",
    "{{ messages|sort(attribute='__class__.__mro__') }}",
    "{{ lipsum.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ namespace.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__code__ }}",
    "{{ [].append.__self__.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{% include 'other' %}",
    "{% import 'other' as other %}",
    "{% extends 'other' %}",
    "{% macro m() %}{{ caller._func.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{{ (1).__class__.__base__.__subclasses__() }}",
]
HUNGRY = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "{{ range(1000000000)|list }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 10 ** (10 ** 9) }}",
    "{{ 'a' * 10 ** 12 }}",
    "{{ '{:>2000000000}'.format('x') }}",
]


@pytest.fixture
def made() -> Iterator[list[ChatTemplate]]:
    templates: list[ChatTemplate] = []
    yield templates
    for one in templates:
        one.close()


def rendered(source: str, made: list[ChatTemplate], **variables: object) -> str:
    made.append(ChatTemplate(source=source))
    made[-1].check()
    return made[-1].render(HELLO, **variables)


@pytest.mark.parametrize("source", ESCAPES)
def test_no_template_leaves_the_sandbox(source: str, made: list[ChatTemplate]) -> None:
    with pytest.raises((RequestError, ConfigError)) as caught:
        rendered(source, made)
    assert "0x" not in str(caught.value)
    assert "/" not in str(caught.value).replace("--chat-template", "")


@pytest.mark.parametrize("source", HUNGRY)
def test_no_template_takes_more_than_it_may(source: str, made: list[ChatTemplate]) -> None:
    made.append(ChatTemplate(source=source))
    made[0].check()
    started = time.monotonic()
    with pytest.raises(RequestError):
        made[0].render(HELLO)
    assert time.monotonic() - started < 20  # the limit is 2 s; the machine may be busy


def test_others_do_not_wait_for_a_hung_template(made: list[ChatTemplate]) -> None:
    source = "{% if hang %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok"
    template = ChatTemplate(source=source, limits=TemplateLimits(seconds=5))
    made.append(template)
    template.check()
    refused: list[RequestError] = []

    def hang() -> None:
        try:
            template.render(HELLO, hang=True)
        except RequestError as error:
            refused.append(error)

    thread = threading.Thread(target=hang)
    started = time.monotonic()
    thread.start()
    time.sleep(0.2)
    for _ in range(5):
        assert template.render(HELLO, hang=False) == "ok"
    assert time.monotonic() - started < 4.5, "a healthy rendering waited for the hung one"
    thread.join(30)
    assert len(refused) == 1
    assert template.render(HELLO, hang=False) == "ok"


def test_a_killed_worker_is_dead_and_replaced(made: list[ChatTemplate]) -> None:
    template = ChatTemplate(
        source="{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        limits=TemplateLimits(seconds=0.3, num_workers=1),
    )
    made.append(template)
    template.check()
    worker = template._pool._idle.queue[0]
    with pytest.raises(RequestError, match=r"0\.3 s"):
        template.render(HELLO)
    assert not worker.is_alive


def test_what_chat_templates_use_works(made: list[ChatTemplate]) -> None:
    source = (
        "{%- for m in messages %}{% if loop.first %}{% continue %}{% endif %}{% endfor %}"
        "{% generation %}{{ messages[0].content | trim }}{% endgeneration %}"
        "{{ {'a': '<b>'} | tojson }}{{ strftime_now('%Y')|length }}{{ messages[0]['role'].upper() }}"
        "{% set ns = namespace(x=1) %}{{ ns.x }}{{ 'a,b'.split(',')[1] }}{{ missing is defined }}"
    )
    assert rendered(source, made) == 'hi{"a": "<b>"}4USER1bFalse'


def test_a_template_refuses_in_its_own_words(made: list[ChatTemplate]) -> None:
    with pytest.raises(RequestError, match="only one user"):
        rendered("{{ raise_exception('only one user') }}", made)


def test_a_broken_template_is_found_at_the_start() -> None:
    with pytest.raises(ConfigError, match="--chat-template"):
        ChatTemplate(source="{% for %}").check()


def test_the_template_says_what_may_be_set(made: list[ChatTemplate]) -> None:
    made.append(ChatTemplate(source="{{ messages }}{{ bos_token }}{% if enable_thinking %}x{% endif %}"))
    assert made[0].check() == {"enable_thinking"}


def test_there_is_one_constructor_of_an_environment() -> None:
    root = Path(tenon_core.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")).endswith(
                "Environment"
            ):
                found.append(path.name)
    assert found == ["template_environment.py"]
    assert make_environment().loader is None
