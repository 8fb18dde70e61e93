"""Chat templates that would exhaust time or memory: some written by hand, any number generated from a grammar.

`main` renders generated ones in a process of its own and prints the outcome of each, for tests that measure children.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time

from eaglelocal.core.request import Message
from eaglelocal.errors import EagleLocalError
from eaglelocal.processes.limited_process import ProcessLimits
from eaglelocal.text.templates.chat_template import ChatTemplate, make_render_process

LIMITS = ProcessLimits(cpu_s=0.3, memory_bytes=96 * 2**20, max_deaths=10**9)
HONEST, HOSTILE = (Message("user", "hello"),), (Message("user", "now"),)


def doubling(first: str, step: str, shown: str = "ns.s|length") -> str:
    return (
        f"{{% set ns = namespace(s={first}) %}}{{% for i in range(60) %}}{{% set ns.s = {step} %}}{{% endfor %}}"
        f"{{{{ {shown} }}}}"
    )


RUNNING = (  # hostile when they run
    doubling("['a']", "[ns.s, ns.s]", "ns.s|string"),
    doubling("['a']", "[ns.s, ns.s]", "ns.s|tojson"),
    doubling("['a']", "[ns.s, ns.s]", "ns.s|pprint"),
    doubling("['a']", "ns.s + ns.s"),
    doubling("['a']", "ns.s * 2"),
    doubling("(1,)", "ns.s + ns.s"),
    doubling("'a'", "ns.s ~ ns.s"),
    doubling("'a'", "[ns.s, ns.s]|join"),
    doubling("'a'", "ns.s.join([ns.s, ns.s])"),
    doubling("'a'", "'%s%s' % (ns.s, ns.s)"),
    doubling("'a'", "'{0}{0}'.format(ns.s)"),
    doubling("'a'", "'%s%s'|format(ns.s, ns.s)"),
    doubling("'aa'", "ns.s|replace('a', 'aa')"),
    doubling("'aa'", "ns.s.replace('a', 'aa')"),
    doubling("'a'.encode()", "ns.s + ns.s"),
    doubling("9", "ns.s * ns.s", "1"),
    doubling("9", "ns.s ** 9", "1"),
    doubling("{'a': 1}", "{'a': ns.s, 'b': ns.s}", "ns.s|tojson"),
    doubling("{'a': 1}", "dict(a=ns.s, b=ns.s)", "ns.s|string"),
    "{% set a %}xx{% endset %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60 + "{{ a }}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(s) %}{{ f(s ~ s) }}{% endmacro %}{{ f('aaaaaaaa') }}",
    "{% for a in [[]] recursive %}{{ loop([[]]) }}{{ loop([[]]) }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999)|list|sort|length }}{% endfor %}",
    "{{ range(1000000000)|list }}",
    "{{ 'x' * (messages|length * 1000000000) }}",
    "{{ [1] * (messages|length * 1000000000) }}",
    "{{ (1, 2) * (messages|length * 1000000000) }}",
    "{{ 'x'.encode() * (messages|length * 1000000000) }}",
    "{{ (messages|length + 8) ** (9 ** 9) % 7 }}",
    "{{ (messages|length + 8) ** (9 ** 9) }}",
    "{{ messages[0].content|center(1000000000) }}",
    "{{ messages[0].content.ljust(1000000000) }}",
    "{{ messages[0].content.zfill(1000000000) }}",
    "{{ ('a\n' * 99999)|indent(99999) }}",
    "{{ '%*d' % (999999999, messages|length) }}",
    "{{ '%.*f' % (999999999, messages|length) }}",
    "{{ '%1000000000d' % messages|length }}",
    "{{ '{:1000000000}'.format(messages|length) }}",
    "{{ '{:{w}}'.format(messages|length, w=1000000000) }}",
    "{{ '%1000000000d'|format(messages|length) }}",
    "{{ (messages[0].content * 99999)|replace('n', 'y' * 99999) }}",
    "{{ (messages[0].content * 999999).join(range(9999)|map('string')) }}",
    "{{ (messages[0].content * 999999)|wordwrap(1) }}",
    "{{ (messages[0].content * 999999)|urlize }}",
    "{{ range(9)|batch(1000000000, 'x')|list }}",
    "{{ range(9)|slice(1000000000)|list }}",
    "{{ {'a': messages}|tojson(indent=1000000000) }}",
    "{{ messages|map(attribute='content')|list * 1000000000 }}",
    "{{ lipsum(n=1000000) }}",
    "{{ lipsum(1, true, 1000000000, 1000000001) }}",
    "{% set c = cycler(*range(99999)) %}{% for i in range(99999) %}{{ c.next() }}{{ c.next() }}{% endfor %}",
    "{% set j = joiner('x' * 999999) %}{% for i in range(99999) %}{{ j() }}{% endfor %}",
    "{{ strftime_now((messages|length * '%c') * 9999999) }}",
    "{{ raise_exception(messages[0].content * 9999999) }}",
    "{{ messages.append(messages) }}{{ messages|tojson }}",
    "{{ messages.append(messages) }}{{ messages|pprint }}",
    "{% set _ = messages.append(messages) %}{% for m in messages recursive %}{{ loop(m) }}{{ loop(m) }}{% endfor %}",
    "{% for i in range(99999) %}{{ messages.append(messages|string) }}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns|tojson }}",
    "{{ messages.pop() }}{{ messages.pop() }}",
    "{{ messages[0].content|map('string')|list|groupby(0)|list|tojson }}{{ range(99999)|groupby(0)|list }}",
)
COMPILING = (  # hostile when they are compiled, whatever is said
    "{{ 'a' * 999999999 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 10 ** 100000 }}",
    "{{ 'a'|center(99999999) }}",
    "{{ ['a' * 9999] * 9999 }}",
    "{% if 1 %}" * 9999 + "{% endif %}" * 9999,
    "{% for a in [1] %}" * 999 + "{% endfor %}" * 999,
    "{% macro a() %}" * 999 + "{% endmacro %}" * 999,
    "{% filter upper %}" * 4999 + "{% endfilter %}" * 4999,
    "{% set a %}" * 999 + "{% endset %}" * 999,
    "{{ " + "[" * 99999 + "]" * 99999 + " }}",
    "{{ " + "-" * 99999 + "1 }}",
    "{{ 1" + "+1" * 49999 + " }}",
    "{{ a" + ".a" * 49999 + " }}",
    "{{ 'a'" + "|upper" * 29999 + " }}",
    "{{ 'a'" + " ~ 'a'" * 29999 + " }}",
    "{{" * 99999,
    "{#" * 99999,
    "{% raw %}" * 9999,
)

VALUES = (
    "messages",
    "messages[0].content",
    "'ab'",
    "['a', 1]",
    "(1, 2)",
    "{'a': [1]}",
    "range(99999)",
    "7",
    "'b'.encode()",
)
GROWTHS = (
    "[{0}, {0}]", "{0} + {0}", "{0} * 2", "{0} * 99999", "{0} ~ {0}", "'%s%s' % ({0}, {0})", "{{'a': {0}, 'b': {0}}}",
    "'{{0}}{{0}}'.format({0})", "{0}|string|replace('a', 'bab')", "[{0}, {0}]|join", "{0}|string ~ {0}|tojson",
    "{0} ** 9",
    "{0}|list + {0}|list", "({0}, {0})", "{0}|tojson|tojson", "{0}|string|urlize", "{0}|string|center(999999)",
    "'%*d' % (9999999, {0}|string|length)", "{0}|string|indent(9999)", "{0}|string|wordwrap(1)",
    "{0}|map('string')|list",
    "dict(a={0}, b={0})", "{0}|string|list|sort", "{0}|list|batch(9, {0})|list", "{0}|list|slice(9)|list", "{0}|pprint",
    "{0}|string|list|groupby(0)|list", "{0}|string|list|unique|list", "m({0})", "{0}|xmlattr", "{0}|sum(start=[])",
)  # fmt: skip
SINKS = ("string", "tojson", "pprint", "length", "list|length", "upper|length", "sort|string", "tojson(indent=9)", "e")
FRAMES = (
    "{{% for i in range({n}) %}}{{% set ns.s = {step} %}}{{% endfor %}}",
    "{{% for i in range({n}) %}}{{% set t %}}{{{{ {step} }}}}{{% endset %}}{{% set ns.s = t %}}{{% endfor %}}",
    "{{% for i in range({n}) %}}{{% for j in range({n}) %}}{{% set ns.s = {step} %}}{{% endfor %}}{{% endfor %}}",
    "{{% for i in range({n}) recursive %}}{{% set ns.s = {step} %}}{{{{ loop([1]) if ns.s else '' }}}}{{% endfor %}}",
    "{{% for i in range({n}) %}}{{{{ messages.append({step}) }}}}{{% set ns.s = messages %}}{{% endfor %}}",
    "{{% macro r(k) %}}{{% if k %}}{{% set ns.s = {step} %}}{{{{ r(k - 1) }}}}{{{{ r(k - 1) }}}}{{% endif %}}"
    "{{% endmacro %}}"
    "{{{{ r({n}) }}}}",
)  # fmt: skip


def make(seed: int) -> str:
    """Return a generated template: a value grows in a loop or by recursion, and is printed."""
    pick = random.Random(seed)
    step = "ns.s"
    for _ in range(pick.randint(1, 3)):
        step = pick.choice(GROWTHS).format(f"({step})" if step != "ns.s" else step)
    frame = pick.choice(FRAMES).format(n=pick.choice((9, 30, 60, 999, 99999)), step=step)
    macro = "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}"
    return f"{macro}{{% set ns = namespace(s={pick.choice(VALUES)}) %}}{frame}{{{{ ns.s|{pick.choice(SINKS)} }}}}"


def switched(source: str) -> str:
    """Return a template that is hostile to one conversation only."""
    return f"{{% if messages[0].content == 'now' %}}{source}{{% else %}}{{{{ messages[0].content }}}}{{% endif %}}"


def limited_template(source: str, limits: ProcessLimits = LIMITS) -> ChatTemplate:
    return ChatTemplate(source, process=make_render_process(limits))


def try_it(seed: int) -> dict[str, object]:
    """Render one and return its CPU time, its outcome, and the rendering of an honest conversation afterwards."""
    template, before = limited_template(switched(make(seed))), _children_s()
    started_at = time.monotonic()
    try:
        end = f"text {len(template.render(HOSTILE))}"
    except EagleLocalError as error:
        end = f"{type(error).__name__}: {error.message[:200]}"
    honest = template.render(HONEST)
    template.close()
    clock_s = time.monotonic() - started_at
    return {"seed": seed, "cpu_s": _children_s() - before, "clock_s": clock_s, "end": end, "honest": honest}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(first: int, last: int) -> None:
    for seed in range(first, last):
        print(json.dumps(try_it(seed)), flush=True)
    print(json.dumps({"most_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
