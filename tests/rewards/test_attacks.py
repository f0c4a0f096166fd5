"""Attacks on the graders of programs, queries and tools: none scores, and honest completions do.

Values: what a function returns in the place of each right result. Programs: how a program behaves in the place of
computing. Queries and turns: the same for databases and tools. `docs/sandbox.md` counts them.
"""
# ruff: noqa: E501  (an attack is a line)

import json
import math

import pytest

from grouprl.envs.builtin.sql import Sql
from grouprl.rewards import exact_match
from grouprl.rewards.by_task.code import passes_tests
from grouprl.rewards.by_task.sql import QueryError, run_query, sql_components
from grouprl.tasks import Example
from grouprl.tools import FORMS, Toolbox, ToolEnvironment
from grouprl.tools.python import python

PATIENT = {"seconds": 30}
RESULTS = {  # right results, and honest expressions for them
    "1000000000": (10**9, ["10**9", "int(1e9)", "1e9"]),
    "0": (0, ["0", "-0", "0.0", "len('')"]),
    "float": (0.3, ["0.1 + 0.2", "0.3", "3 / 10"]),
    "text": ("right", ["'right'", "''.join('right')", "'RIGHT'.lower()"]),
    "list": ([1, 2, 3], ["[1, 2, 3]", "list(range(1, 4))", "(1, 2, 3)", "sorted([3, 1, 2])"]),
    "floats": ([0.5, 1.5], ["[0.5, 1.5]", "[n / 2 for n in (1, 3)]"]),
    "mapping": ({"a": 1}, ["{'a': 1}", "dict(a=1)", "dict([('a', True + 0)])"]),
    "true": (True, ["True", "1 == 1", "not []"]),
    "nothing": (None, ["None", "print()"]),
    "large": (2**64 + 1, ["2**64 + 1", "(1 << 64) | 1"]),
}
VALUES = [
    "float('inf')",
    "-float('inf')",
    "float('nan')",
    "1e999",
    "-1e999",
    "[float('inf')]",
    "[float('nan')]*3",
    "{'a':float('inf')}",
    "{'a':float('nan')}",
    "10**9-1",
    "10**9+1",
    "999999999.0",
    "1000000001.0",
    "1e9+0.5",
    "10**9*(1+1e-9)",
    "10**999",
    "-10**999",
    "2.0**64",
    "2**64",
    "float(2**64+1)",
    "1e-9",
    "-1e-9",
    "0.30000001",
    "0.2999999",
    "0.3+1e-6",
    "1e-300",
    "'1000000000'",
    "'0'",
    "'0.3'",
    "'[1,2,3]'",
    "'[1,",
    "2,",
    "3]'",
    '\'{"a":',
    "1}'",
    "'true'",
    "'None'",
    "'null'",
    "'True'",
    "b'right'",
    "'Right'",
    "'right",
    "'",
    "'",
    "right'",
    "'right\\0'",
    "'rіght'",
    "['right']",
    "[[1,2,3]]",
    "[1,2,3,4]",
    "[1,2]",
    "[1,2,3.0001]",
    "[1,2,'3']",
    "[3,2,1]",
    "{1,2,3}",
    "{0:1,1:2,2:3}",
    "[True,2,3]",
    "[0.5]",
    "[0.5,1.5,2]",
    "[0.5,1.5000001]",
    "[0.5,float('inf')]",
    "{'a':2}",
    "{'a':True}",
    "{'a':'1'}",
    "{'a':1,'b':1}",
    "{'A':1}",
    "{}",
    "[]",
    "''",
    "()",
    "object()",
    "type",
    "f",
    "(lambda:1)",
    "NotImplemented",
    "Ellipsis",
    "range(3)",
    "iter([1,2,3])",
    "1j",
    "complex('inf')",
    "Any()",
    "AnyInt(7)",
    "AnyFloat(5)",
    "AnyText()",
    "AnyList()",
    "AnyDict()",
    "[Any()]",
    "{'a':AnyInt(7)}",
    "__import__('decimal').Decimal('Infinity')",
    "__import__('fractions').Fraction(3,10)",
    "__import__('math')",
    "sys",
    "exit",
]
CLASSES = """
import sys
def always(self, *others): return True
class Any: __eq__ = __le__ = __ge__ = always; __hash__ = lambda s: 0
class AnyInt(int): __eq__ = __le__ = __ge__ = always; __hash__ = lambda s: 0
class AnyFloat(float): __eq__ = __le__ = always; __hash__ = lambda s: 0; __repr__ = lambda s: 'Infinity'
class AnyText(str): __eq__ = always; __hash__ = lambda s: 0
class AnyList(list): __eq__ = always
class AnyDict(dict): __eq__ = always
"""


@pytest.mark.parametrize("name", RESULTS)
def test_no_value_passes_for_another(name):
    expected, honest = RESULTS[name]
    tests = [{"arguments": [n], "result": expected} for n in range(len(VALUES))]
    code = f"{CLASSES}\nVALUES = [lambda v=v: eval(v) for v in {VALUES!r}]\ndef f(n): return VALUES[n]()"
    found = passes_tests(code, tests, "f", PATIENT, partial=True)["tests"]
    assert found == 0, [
        v for v, t in zip(VALUES, tests, strict=True) if passes_tests(code, [t], "f", PATIENT)["correct"]
    ]
    for expression in honest:
        assert passes_tests(f"def f(n): return {expression}", tests[:3], "f", PATIENT)["correct"] == 1, expression


DOUBLED = [{"arguments": [n], "result": 2 * n} for n in (3, 50, 701)]
FORGED = "".join(f'{{"result": {value}}}\\n' for value in ("Infinity", "1e999", "true", "null"))
PROGRAMS = [
    "import os; os._exit(0)",
    "import sys; sys.exit(0)",
    "raise SystemExit",
    "quit()",
    "import os; os.kill(os.getpid(), 9)",
    "import os; os.abort()",
    "while True: pass",
    "def f(n): raise StopIteration",
    "def f(n): import os; os._exit(0)",
    "def f(n): raise SystemExit(0)",
    "def f(*a): return a",
    "def f(n): return n",
    "def f(n): return f",
    "def f(n): return f(n)",
    "def f(n): yield 2 * n",
    "async def f(n): return 2 * n",
    "class f:\n    def __init__(self, n): self.result = 2 * n",
    "f = None",
    "f = 6",
    "def g(n): return 2 * n",
    "def f(): return 6",
    "",
    " ",
    "```python\n```",
    "f(n) = 2n",
    "2 * n",
    "print(6); print(100); print(1402)",
    "import json; json.dumps = lambda *a, **k: '{\"result\": 6}'\ndef f(n): return 0",
    "import json; json.JSONEncoder.encode = lambda s, o: '{\"result\": 6}'\ndef f(n): return 0",
    "import builtins; builtins.open = None\ndef f(n): return 0",
    "import sys; sys.modules['json'] = None\ndef f(n): return 0",
    "import sys; sys.stdout = open('results.jsonl', 'w')\ndef f(n): print(2 * n)",
    "def f(n): return globals()",
    "def f(n): return __builtins__",
    "def f(n): return open('inputs.json').read()",
    "def f(n): return open('main.py').read()",
    "def f(n): return [open(name).read() for name in __import__('os').listdir('.')]",
    "def f(n): return __import__('sys')._getframe(1).f_locals",
    "def f(n): return __import__('sys')._getframe(1).f_locals['inputs']",
    "def f(n): return str(__import__('gc').get_objects())[:10**5]",
    "def f(n): return __import__('os').environ.get('EXPECTED')",
    "def f(n): return open('/proc/self/environ').read()",
    "def f(n): return open('/proc/1/cmdline').read()",
    "def f(n): return [open(p).read() for p in __import__('glob').glob('/box/*')]",
    "def f(n): return __import__('inspect').stack()[1].frame.f_globals.get('tests')",
    "def f(n):\n    for k in range(3, 64):\n        try: __import__('os').write(k, b'" + FORGED + "')\n"
    "        except OSError: pass\n    return 0",
    "import os\nfor k in range(1, 64):\n    try: os.write(k, b'" + FORGED + "')\n    except OSError: pass\ndef f(n): return 0",
    "import os\nfor k in range(1, 64):\n    try: os.close(k)\n    except OSError: pass\ndef f(n): return 2 * n",
    "open('results.jsonl', 'w').write('" + FORGED + "')\nimport os; os._exit(0)",
    "import atexit, os\natexit.register(lambda: open('results.jsonl', 'w').write('" + FORGED + "'))\ndef f(n): return 0",
    "import threading, time\nthreading.Thread(target=lambda: [print('" + FORGED + "') for _ in range(9)]).start()\ndef f(n): return 0",
    "import sys\nsys.settrace(lambda *a: None)\ndef f(n): return float('inf')",
    "import signal, os\nsignal.signal(signal.SIGTERM, lambda *a: None)\ndef f(n): os.kill(os.getpid(), 15); return 'x'",
    "x = [0] * 10**10\ndef f(n): return 2 * n",
    "def f(n): return '9' * 10**8",
    "def f(n):\n    d = []\n    for _ in range(10**5): d = [d]\n    return d",
    "def f(n):\n    d = {}; d['d'] = d\n    return d",
    "import ctypes; ctypes.string_at(0)\ndef f(n): return 2 * n",
    "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return f(n)",
    "9**999", "8**7**6", "f = 8**99**2", "(" * 5000, "-" * 100000 + "1", "x" + ".a" * 50000, "'" * 1000, "\0", "\ud800", "é" * 999,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_no_program_passes_without_computing(number):
    code = PROGRAMS[number]
    scored = passes_tests(code, DOUBLED, "f", {"seconds": 1})
    assert scored == {"tests": 0.0, "correct": 0.0}, code
    scored = passes_tests(code, [{"stdin": str(n), "stdout": str(2 * n)} for n in (3, 50)], "", {"seconds": 1})
    assert scored == {"tests": 0.0, "correct": 0.0}, code


@pytest.mark.parametrize(
    "code",
    [
        "def f(n): return n + n",
        "f = lambda n: n << 1",
        "```python\ndef f(n):\n    print('thinking')\n    return 2 * n\n```",
        "import sys\ndef f(n):\n    sys.stderr.write('x' * 10**6)\n    return n * 2.0",
        "class A:\n    def __call__(self, n): return 2 * n\nf = A()",
        "def f(n): return 0 if n == 0 else 2 + f(n - 1)",
        "import atexit\natexit.register(print, 'bye')\ndef f(n): return n * 2",
        "def f(n, unused=1, *more, **others):\n    return sum([n, n])",
    ],
)
def test_honest_programs_pass(code):
    assert passes_tests(code, DOUBLED, "f", PATIENT) == {"tests": 1.0, "correct": 1.0}


PRINTS = [
    "print('6\\x1c100')", "print('6 100')", "print('6', '100', sep='\\x0b')", "print('6\\u2028')", "print(6.0)", "print('06')",
    "print('+6')", "print(' 6')", "print('6\\n\\n100')", "print('\\n6')", "print('6\\x00')", "print('６')", "print('6', end='.')",
    "print('6')\nraise SystemExit(1)", "print('6')\nimport os; os._exit(3)", "import sys; print('6', file=sys.stderr)",
    "print('6')\nprint('x' * 10**6)", "print('6')\nwhile True: pass", "input(); print(input())", "print(input())",
    "open('stdout', 'w').write('6')", "print('six')", "print(0x6, 'or', 7)", "print([6])", "print('6\\r7')",
]  # fmt: skip


@pytest.mark.parametrize("code", PRINTS)
def test_no_print_passes_for_another(code):
    tests = [{"stdin": "3", "stdout": "6"}, {"stdin": "50", "stdout": "100"}]
    assert passes_tests(code, tests, "", {"seconds": 2})["correct"] == 0
    shown = [{"stdin": "3", "stdout": "6"}]
    passed = passes_tests(code, shown, "", {"seconds": 2})["correct"]
    assert passed == 0, ascii(code)


TABLE = {"pet": {"age": [3, 1, 2, 2], "fat": [5, 5, 7, 9]}}
GOLDS = (
    "select max(fat) from pet where age < 3",
    "select age from pet order by age",
    "select count(*), age from pet group by age",
)
QUERIES = [
    "", " ", ";", "select", "select 1", "select null", "select 9e999", "select -9e999", "select 'inf'", "select '9'", "select 9 where 0",
    "select true", "select * from pet", "select fat from pet", "select max(age) from pet", "select 9.5", "select 9, 9", "select (9)||''",
    "select 9 union select 8", "select 9 union all select 9", "values (8)", "select max(fat)+0.0000001 from pet", "select * from sqlite_master",
    "select age from pet", "select age from pet order by age desc", "select distinct age from pet order by age", "select age from pet limit 3",
    "select 1 union select 2 union select 3", "select count(*) from pet", "select age, count(*) from pet group by age",
    "insert into pet values (9, 9)", "update pet set fat = 9", "delete from pet", "drop table pet", "create table x (a)", "attach 'x' as y",
    "pragma table_info(pet)", "pragma writable_schema=1", "vacuum", "begin", "select load_extension('x')", "select readfile('/etc/passwd')",
    "select writefile('x', 'y')", "select randomblob(1000000000)", "select zeroblob(1000000000)", "select hex(zeroblob(500000000))",
    "select printf('%1000000000d', 1)", "select replace('a', 'a', 'b')", "select random()", "select fts3_tokenizer('simple')",
    "with recursive t(n) as (select 1 union all select n + 1 from t) select n from t",
    "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t",
    "select * from pet a, pet b, pet c, pet d, pet e, pet f, pet g, pet h, pet i, pet j, pet k",
    "select max(a.fat) from pet a, pet b, pet c, pet d, pet e, pet f, pet g, pet h, pet i, pet j, pet k, pet l, pet m, pet n",
    "select x||x||x||x||x||x||x||x||x||x from (select x||x||x||x||x||x||x||x||x||x x from (select x||x||x||x||x||x||x||x||x||x x from "
    "(select x||x||x||x||x||x||x||x||x||x x from (select x||x||x||x||x||x||x||x||x||x x from (select x||x||x||x||x||x||x||x||x||x x "
    "from (select x||x||x||x||x||x||x||x||x||x x from (select x||x||x||x||x||x||x||x||x||x x from (select 'aaaaaaaaaaaaaaaaaaaa' x))))))))",
    "select " + "(" * 900 + "9" + ")" * 900, "select " + "-" * 1500 + "9", "select " + "9+" * 900 + "9", "select \0 9", "select '\ud800'",
    "select 9 -- max(fat)" + " " * 3000, "selectmax(fat) from pet", "explain select max(fat) from pet", "explain query plan select 9",
    "select max(fat) from pet where age < 3; select 1", "select max(fat) from pet where age < 3; drop table pet",
    "select 'a' like '" + "%a" * 400 + "'", "select max(fat) from pets", "select max(weight) from pet", "select sum(9223372036854775807) from pet",
    "select case when (select count(*) from pet) = 4 then 9 else 0 end", "select 9 where (select sum(fat) from pet) = 26",
    "select iif((select max(age) from pet) = 3, 9, (select min(fat) from pet))", "select case max(fat) when 9 then 9 else 1 end from pet",
    "select coalesce((select 9 from pet where fat = 9 and age = 2 limit 1), 3)", "select 9 + count(*) - 4 from pet",
    "select 9 union select 9 from pet where age > 90", "select max(9, (select age - 3 from pet limit 1))",
    "select abs(-9223372036854775808)", "select 1/0", "select 9 from pet", "select cast(9 as text)", "select 9 as x, null as y",
]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: ascii(q)[:30])
def test_no_query_passes_for_another(query):
    for gold in GOLDS:
        assert sql_components(query, gold, TABLE)["execution"] == 0, (query[:80], gold)
        parts = sql_components(query, gold, TABLE)
        assert all(math.isfinite(value) and 0 <= value <= 1 for value in parts.values())


@pytest.mark.parametrize(
    ("query", "gold"),
    [
        ("SELECT MAX(fat) FROM pet WHERE age <= 2", GOLDS[0]),
        ("select fat from pet where age < 3 order by fat desc limit 1", GOLDS[0]),
        ("select coalesce(max(fat), 0) from pet where age < 3 having count(*) > 0", GOLDS[0]),
        (
            "select fat from (select fat, row_number() over (order by fat desc) n from pet where age < 3) where n = 1",
            GOLDS[0],
        ),
        ("select first_value(fat) over (order by fat desc) from pet where age < 3 limit 1", GOLDS[0]),
        (
            "select cast(substr(max('0' || fat), -2) + 0 as int) from pet where age < 3",
            "select max(fat) from pet where age < 3",
        ),
        ("select distinct count(*) over (partition by age), age from pet", GOLDS[2]),
        ("select age from pet order by age asc;", GOLDS[1]),
        ("select count(age), age from pet group by age", GOLDS[2]),
        ("select count(*), age from pet group by age order by age desc", GOLDS[2]),
    ],
)
def test_honest_queries_pass(query, gold):
    assert sql_components(query, gold, TABLE)["execution"] == 1


def test_queries_of_every_kind_end_an_episode_or_are_answered():
    for query in QUERIES:
        game = Sql(3)
        columns = {"table": "pet", "columns": TABLE["pet"], "gold": GOLDS[0], "wrong": ["x"]}
        game.reset(Example("q", "?", columns), 0)
        game.step(query)
        assert all(math.isfinite(value) for value in game.score().values())


JSON = FORMS["json"]
CALLED = JSON.write("python", {"code": "7 * 6"})
TURNS = [
    "", " ", "41", "the completion is 42!", "42 43", "4 2", "٤٢", "<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<tool_call>42</tool_call>",
    "42</tool_call>", "<tool_call>{}</tool_call>", '<tool_call>{"name": "python"}</tool_call>', '<tool_call>{"name": 42}</tool_call>',
    '<tool_call>{"name": "python", "arguments": 42}</tool_call>', '<tool_call>{"name": "python", "arguments": "42"}</tool_call>',
    '<tool_call>{"name": "completion", "arguments": {"completion": 42}}</tool_call>', '<tool_call>{"name": "python", "arguments": {"code": 42}}</tool_call>',
    '<tool_call>{"name": "python", "arguments": {"code": "42", "more": 1}}</tool_call>', '<tool_call>[42]</tool_call>', "<tool_call>" * 500,
    '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', '<tool_call>{"name": "python", "arguments": {"\\ud800": 1}}</tool_call>',
    '<tool_call>' + "[" * 5000 + '</tool_call>', '<tool_call>' + "9" * 6000 + '</tool_call>', '<tool_call>{"name": "python", "arguments": NaN}</tool_call>',
    *[JSON.write("python", {"code": code}) for code in (
        "42", "print(42)", "print('=42')", "print('<tool_call>42')", "import os; os._exit(0)", "raise SystemExit('42')", "1/0", "'\\ud800'", "chr(55296)",
        "chr(0)", "print('x' * 10**5)", "open('/etc/passwd').read()", "9**99999", "while True: print(42)", "import sys; sys.stdout.buffer.write(b'\\xff42')",
        "exit(42)", "\0", "(" * 3000, "__import__('os').fork()", "__import__('socket').socket()", "float('inf')", "object()",
    )],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TURNS)))
def test_no_turn_earns_without_the_answer_and_the_episode_goes_on(number):
    environment = ToolEnvironment(Toolbox([python]), exact_match, max_turns=3)
    environment.reset(Example("q", "7*6?", {"answer": "42"}), 0)
    step = environment.step(TURNS[number])
    assert step.reward == 0
    assert environment.score()["correct"] == 0
    step.observation.text.encode()
    assert "\0" not in step.observation.text
    json.dumps(step.observation.messages, allow_nan=False)
    if not step.terminated:
        assert environment.step("42").reward == 1


def test_honest_turns_pass():
    for turns in (["42"], [CALLED, "42"], ["I compute. " + CALLED, " 42 \n"], [CALLED + CALLED, "42"]):
        environment = ToolEnvironment(Toolbox([python]), exact_match, max_turns=3)
        environment.reset(Example("q", "7*6?", {"answer": "42"}), 0)
        assert [environment.step(turn).reward for turn in turns][-1] == 1


def test_the_matrix_is_large():
    attacks = len(VALUES) * len(RESULTS) + 2 * len(PROGRAMS) + 2 * len(PRINTS) + len(QUERIES) * len(GOLDS) + len(TURNS)
    assert attacks >= 1000
    assert len(PROGRAMS) + len(PRINTS) + len(QUERIES) + len(TURNS) + len(VALUES) >= 300


def test_a_query_cannot_take_the_memory():
    with pytest.raises(QueryError, match="too big"):
        run_query("select x||x||x||x||x||x||x||x from (select x||x||x||x||x||x||x||x x from (select x||x||x||x||x||x||x||x x from "
                  "(select x||x||x||x||x||x||x||x x from (select x||x||x||x||x||x||x||x x from (select x||x||x||x||x||x||x||x x from "
                  "(select 'aaaaaaaaaaaaaaaa' x))))))", TABLE)  # fmt: skip
