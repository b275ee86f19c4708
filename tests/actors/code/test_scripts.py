"""A class of a script that is not guarded by `if __name__ == "__main__":` has in hosts what it has in the script, or is refused."""

from __future__ import annotations

import linecache
import logging
import sys
import zipfile
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest

import perdure
from perdure.actors.code.naming import function_name, load_type, loaded_class, type_name, what_is_typed
from perdure.ledger import BadRequest

START = """
with Runtime(data="x") as runtime:
    print(runtime.run(Till, "tea"))
"""


class FakeRuntime:
    """What a script begins: it looks at the class as a host would, and as the script has it."""

    def __init__(self, *given: object, **named: object) -> None:
        del given, named

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        """Nothing to close."""

    def run(self, cls: Any, *given: object) -> object:
        """Note what the class gives here."""
        del given
        SEEN.append(cls().look())
        return SEEN[-1]

    def agent(self, cls: Any, name: str) -> object:
        """A handle: what is called on it is done elsewhere."""
        del name
        return SimpleNamespace(look=lambda: SEEN.append(cls().look()))


SEEN: list[object] = []


class Script:
    """A script that is executed as `__main__`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        monkeypatch.setattr(perdure, "Runtime", FakeRuntime)
        SEEN.clear()

    def run(self, text: str, name: str = "a-script.py") -> ModuleType:
        file = self.folder / name
        file.write_text(dedent(text), encoding="utf-8")
        main = ModuleType("__main__")
        main.__file__ = str(file)
        self._monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - as Python does
        return main


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(tmp_path, monkeypatch)


TILL = """
class Till:
    def look(self):
        return {}
"""

SAME = {
    "a loop": "PRICES = {}\nfor name, price in (('tea', 2), ('cake', 4)):\n    PRICES[name] = price|PRICES",
    "a call of a method": "EXTRA = []\nEXTRA.append('sugar')|EXTRA",
    "an update": "PRICES = {'tea': 1}\nPRICES.update(tea=2)|PRICES",
    "a file that is read": "import json\nwith open('p.json') as file:\n    PRICES = json.load(file)|PRICES",
    "a file that is read line by line": "LINES = []\nwith open('p.json') as file:\n    for line in file:\n"
    "        LINES.append(line)|LINES",
    "an attempt": "try:\n    LIMIT = int('x')\nexcept ValueError:\n    LIMIT = 3|LIMIT",
    "a condition": "LIMIT = 1\nif LIMIT < 2:\n    LIMIT = 7|LIMIT",
    "an augmented assignment": "LIMIT = 1\nLIMIT += 4|LIMIT",
    "an augmented list": "NAMES = ['a']\nNAMES += ['b']|NAMES",
    "a deletion": "PRICES = {'a': 1, 'b': 2}\ndel PRICES['a']|PRICES",
    "a name that is gone": "LIMIT = 1\ndel LIMIT|globals().get('LIMIT', 'none')",
    "a function that sets a global": "LIMIT = 1\ndef more():\n    global LIMIT\n    LIMIT = 5\nmore()|LIMIT",
    "a function that fills": "T = {}\ndef fill():\n    T['a'] = 1\ndef all():\n    fill()\nall()|T",
    "a function that fills what it is given": "T = {}\ndef fill(t):\n    t['a'] = 1\nfill(T)|T",
    "a function that fills through another": "T = {}\ndef put(t):\n    t['a'] = 1\ndef fill(t):\n    put(t)\nfill(T)|T",
    "a call whose answer is kept": "T = {}\ndef fill(t):\n    t['a'] = 1\n    return 1\nN = fill(T)|T",
    "another name": "T = {}\nU = T\nU['a'] = 1|T",
    "another name that is read": "T = {}\nU = T\nT['a'] = 1|U",
    "two names at once": "T = U = {}\nU['a'] = 1|T",
    "an element": "class P:\n    n = 1\nPS = [P(), P()]\nfor p in PS:\n    p.n = 2|[p.n for p in PS]",
    "a sorted element": "class P:\n    n = 1\nPS = [P()]\nfor p in sorted(PS, key=id):\n    p.n = 2|[p.n for p in PS]",
    "a part": "T = {'a': {}}\nT['a']['b'] = 1|T",
    "what holds it": "T = {}\nALL = {}\nALL['t'] = T\nALL['t']['x'] = 1|T",
    "an object with a method": "class Box:\n    def __init__(self): self.n = []\n    def put(self, x): self.n.append(x)\n"
    "BOX = Box()\nBOX.put(1)|BOX.n",
    "an object that holds it": "T = {}\nclass Box:\n    def __init__(self, t): self.t = t\n    def put(self): self.t['a'] = 1\n"
    "Box(T).put()|T",
    "a decorator": "ALL = {}\ndef known(cls):\n    ALL[cls.__name__] = 1\n    return cls\n@known\nclass Tea: pass|ALL",
    "a decorator with arguments": "ALL = {}\ndef known(n):\n    def mark(f):\n        ALL[n] = 1\n        return f\n    return mark\n"
    "@known('x')\ndef tea(): pass|ALL",
    "subclasses that register themselves": "ALL = []\nclass Base:\n    def __init_subclass__(cls): ALL.append(cls.__name__)\n"
    "class Tea(Base): pass\nclass Green(Tea): pass|ALL",
    "a metaclass": "ALL = []\nclass Meta(type):\n    def __init__(cls, *a): ALL.append(cls.__name__)\n"
    "class Tea(metaclass=Meta): pass|ALL",
    "a comprehension": "N = [1, 2]\nSQ = [n * n for n in N]|SQ",
    "a comprehension for its effect": "T = []\n[T.append(n) for n in (1, 2)]|T",
    "a lambda": "T = []\nadd = lambda x: T.append(x)\nadd(3)|T",
    "a lambda that is given": "T = []\nlist(map(lambda x: T.append(x), (1, 2)))|T",
    "setattr": "class C: pass\nsetattr(C, 'n', 4)|C.n",
    "globals": "globals()['LIMIT'] = 4|LIMIT",
    "exec": "exec('LIMIT = 4')|LIMIT",
    "an import of everything": "from math import *|floor(2.5)",
    "the environment": "import os\nos.environ['PERDURE_TEST_X'] = 'yes'|__import__('os').environ.get('PERDURE_TEST_X')",
    "the import path": "import sys\nsys.path.insert(0, 'lib')\nimport in_lib|in_lib.N",
    "what is set in a module": "import beside\nbeside.N = 9|__import__('beside').N",
    "a registry elsewhere": "import beside\nbeside.register('x')|beside.ALL",
    "a shuffle": "import random\nrandom.seed(1)\nN = list(range(9))\nrandom.shuffle(N)|N",
    "a heap": "from heapq import heappush\nN = []\nheappush(N, 2)\nheappush(N, 1)|N",
    "decimals": "import decimal\ndecimal.getcontext().prec = 3|str(decimal.Decimal(1) / 3)",
    "a while": "N = 0\nwhile N < 3:\n    N += 1|N",
    "a match": "match (1, 2):\n    case (a, b):\n        N = a + b|N",
    "an assignment within an expression": "if (N := 4) > 2:\n    pass|N",
    "unpacking": "A, *B = [1, 2, 3]|[A, B]",
    "the text of the script": "|__doc__",
    "a guard that would end it": "import sys\ntry:\n    N = 1\nexcept OSError:\n    sys.exit('no')|N",
    "a name made later": "def late(): return HELP\nHELP = 1\nHELP = 2|late()",
    "what is printed": "T = {}\nprint(T)\nT['a'] = 1|T",
    "what is written elsewhere": "import json, pathlib\nT = {'a': 1}\npathlib.Path('out').write_text(json.dumps(T))|T",
    "an unrelated wipe": "import shutil\nT = [1]\nshutil.rmtree('gone', ignore_errors=True)|[T, shutil.__name__]",
    "a method that is given later": "class B: pass\nB.extra = lambda self: 4|B().extra()",
    "a slice": "L=[1,2]\nL[:] = [3]\ndel L[0]\nL.append(9)|L",
    "a lock": "import threading\nlock = threading.Lock()\nT={}\nwith lock:\n    T['a']=1|T",
    "a list within": "T={}\nT.setdefault('x', []).append(1)|T",
    "the level of a logger": "import logging\nlogging.getLogger('xyz').setLevel(33)|logging.getLogger('xyz').level",
    "values that are doubled": "T={'a':1,'b':2}\nfor k in list(T):\n    T[k] *= 2|T",
    "a closure that counts": "def make():\n    n = 0\n    def inc():\n        nonlocal n\n        n += 1\n"
    "        return n\n    return inc\nnext_ = make()\nnext_()|next_()",
    "a function that reads into it": "import json\nfrom pathlib import Path\nT={}\ndef into(t, p):\n"
    "    t.update(json.loads(Path(p).read_text()))\ninto(T,'p.json')|T",
    "an attribute": "from dataclasses import dataclass, field\n@dataclass\nclass C:\n"
    "    items: list = field(default_factory=list)\nc = C()\nc.items.append(1)\n"
    "c.x = 4|[c.items, c.x]",
    "a thread": "import threading\nT={}\ndef fill():\n    T['a']=1\nth = threading.Thread(target=fill)\nth.start()\nth.join()|T",
    "a generator that fills": "T=[]\ndef g():\n    T.append(1)\n    yield\nfor _ in g(): pass|T",
    "arguments by name": "T={}\ndef f(*a, **k):\n    k['t']['a'] = 1\nf(t=T)|T",
    "a partial function": "import functools\nT={}\ndef put(t, k):\n    t[k]=1\nf = functools.partial(put, T)\nf('a')|T",
    "a method by another name": "T=[]\npush = T.append\npush(1)|T",
    "a class's own list": "class Box:\n    items = []\n    @classmethod\n"
    "    def put(cls, x): cls.items.append(x)\nBox.put(1)|Box.items",
    "a static method": "T=[]\nclass Box:\n    @staticmethod\n    def put(x): T.append(x)\nBox.put(1)|T",
    "an object that is called": "T=[]\nclass F:\n    def __call__(self, x): T.append(x)\nf = F()\nf(1)|T",
    "a context of the program's": "T=[]\nclass C:\n    def __enter__(self): T.append('in')\n"
    "    def __exit__(self,*a): T.append('out')\nwith C():\n    pass|T",
    "an object's making": "T=[]\nclass C:\n    def __init__(self): T.append(1)\nC()\nX = C()|T",
    "an inherited method": "T=[]\nclass A:\n    def put(self): T.append(1)\nclass B(A): pass\nB().put()|T",
    "chained calls": "class Q:\n    def __init__(self): self.w=[]\n    def add(self, x):\n"
    "        self.w.append(x)\n        return self\nq = Q().add(1).add(2)|q.w",
    "an import within a function": "def load():\n    global M\n    import math as M\nload()|M.floor(2.5)",
    "what a function gives": "T={'a':[]}\ndef get(): return T['a']\nget().append(1)|T",
    "what a function gave": "T={'a':[]}\ndef get(): return T\nx = get()\nx['b'] = 1|T",
    "a default that is kept": "def f(x=[]):\n    x.append(1)\n    return x\nf()|f()",
    "a registry of the program's": "class Reg:\n    def __init__(self): self.all = {}\n    def register(self, f):\n"
    "        self.all[f.__name__] = 1\n        return f\nreg = Reg()\n@reg.register\n"
    "def tea(): pass\n@reg.register\ndef cake(): pass|reg.all",
    "an object that decorates": "ALL={}\nclass Reg:\n    def __call__(self, name):\n        def deco(c):\n"
    "            ALL[name]=1\n            return c\n        return deco\nreg = Reg()\n"
    "@reg('x')\nclass X: pass|ALL",
    "values of a table": "T={'a':[]}\nfor v in T.values():\n    v.append(1)|T",
    "a function that is defined again": "def f(): return 1\nX = f()\ndef f(): return 2|[X, f()]",
    "an assignment within a list": "L = [y := 5, y + 1]|[L, y]",
    "the working directory": "import os\nos.chdir('lib')\nX = os.path.exists('in_lib.py')\nos.chdir('..')|X",
    "a longer import path": "import sys\nsys.path += ['lib']\nfrom in_lib import N|N",
    "a sorted list": "T=[3,1]\nT.sort(key=lambda x: x)|T",
    "an import that fails": "try:\n    import nowhere_at_all as x\nexcept ImportError:\n    x = None|x",
    "a cache of the class's own": "CACHE = {}|CACHE.setdefault('a', 1)",
}


def _with_till(case: str, start: str = START) -> str:
    before, _, looked = case.rpartition("|")
    return f'"""A till."""\nfrom perdure import Runtime\n{before}\n{TILL.format(looked)}\n{start}'


def _write_beside(folder: Path) -> None:
    (folder / "p.json").write_text('{"tea": 2}')
    (folder / "beside.py").write_text("N = 1\nALL = []\nregister = ALL.append\ndef complete(t):\n    t['a'] = 1\n")
    (folder / "lib").mkdir()
    (folder / "lib/in_lib.py").write_text("N = 8")


def _forget() -> None:
    for name in ("beside", "in_lib"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("case", SAME.values(), ids=SAME)
def test_a_class_has_in_hosts_what_the_script_made(
    case: str, script: Script, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _write_beside(script.folder)
    monkeypatch.delenv("PERDURE_TEST_X", raising=False)
    main = script.run(_with_till(case))
    name = type_name(main.Till)
    _forget()
    monkeypatch.delenv("PERDURE_TEST_X", raising=False)
    assert load_type(name)().look() == SEEN[0]
    assert len(SEEN) == 1, "the host has begun the program"
    assert not caplog.records
    _forget()


REFUSED = {
    "arguments": ("import sys\nLIMIT = len(sys.argv)|LIMIT", START, r"line 4, `LIMIT = len\(sys.argv\)`"),
    "parsed arguments": (
        "import argparse\nparser = argparse.ArgumentParser()\nargs = parser.parse_args([])|args",
        START,
        r"line 5, `args = parser.parse_args",
    ),
    "what the program adds": (
        "T = []|T",
        START + "    T.append(1)\n",
        r"`with Runtime\(data='x'\) as runtime:`, gives or ch",
    ),
    "what the program sets": ("N = 1|N", START + "    N = 2\n", "gives or changes N"),
    "what a function of the program sets": (
        "N = 1\ndef main():\n    global N\n    N = 2\n    with Runtime() as r:\n        print(r.run(Till))|N",
        "main()",
        r"`main\(\)`, gives or changes N",
    ),
    "what comes after": ("T = {}|T", START + "T['a'] = 1", r"`T\['a'\] = 1`, changes T after the program has begun"),
    "its results": (
        "|len(first)",
        "runtime = Runtime()\nfirst = [1]\nfirst = runtime.run(Till)",
        "gives or changes first",
    ),
    "what nobody can see into": (
        "import beside\nT = {}\nbeside.complete(T)|T",
        START,
        r"line 5, `beside.complete\(T\)`, may change T",
    ),
    "a method of who knows what": (
        "import collections\nT = collections.Counter()\nT.subtract('ab')|T",
        START,
        r"`T.subtract\('ab'\)`, may change T",
    ),
    "a class of the program": (
        "",
        "with Runtime() as r:\n    class Till:\n        def look(self): pass\n",
        "gives or changes Till",
    ),
}


@pytest.mark.parametrize(("case", "start", "said"), REFUSED.values(), ids=REFUSED)
def test_a_class_that_would_differ_in_hosts_is_refused_with_the_line(
    case: str, start: str, said: str, script: Script
) -> None:
    _write_beside(script.folder)
    main = script.run(_with_till(case, start) if case else f"from perdure import Runtime\n{start}")
    with pytest.raises(BadRequest, match=said) as refused:
        type_name(main.Till)
    assert refused.value.field == "agent_type"
    assert 'put what starts the program under `if __name__ == "__main__":`' in str(refused.value)
    _forget()


FINE = {
    "results of its own": START
    + "    results = []\n    for each in T:\n        results.append(each)\n    print(results)",
    "sorted answers": START + "    found = [runtime.run(Till, n) for n in T]\n    found.sort(key=str)",
    "a handle": "runtime = Runtime()\nrun = runtime.run\nrun(Till)\nfound = run(Till, T)\nprint(found)",
    "arguments of its own": "import sys\nprint(sys.argv)\n" + START,
    "a wipe": "import shutil, pathlib\nshutil.rmtree(pathlib.Path('x'), ignore_errors=True)\n" + START,
    "its own loop": "import asyncio\nasync def main():\n    Runtime().run(Till, T)\nasyncio.run(main())",
    "arguments that it hands over": "import argparse\nparser = argparse.ArgumentParser()\n"
    "args = parser.parse_args([])\nprint(Runtime(vars(args)).run(Till, args))",
    "a log": "import logging\nlogging.getLogger('x').info('%s', T)\n" + START,
    "a file that it writes": "import json\nwith open('out', 'w') as file:\n    json.dump(T, file)\n" + START,
    "a copy": "copy = sorted(T)\ncopy.append(3)\n" + START + "    copy.append(4)\n",
    "a name that is a local one in the class": START + "    cls = self = 3\n    cls += 1\n",
    "a call with it": "def show(t):\n    print(len(t), Runtime().run(Till))\nshow(T)",
}


@pytest.mark.parametrize("start", FINE.values(), ids=FINE)
def test_what_a_program_does_besides_is_no_harm(start: str, script: Script, caplog: pytest.LogCaptureFixture) -> None:
    main = script.run(_with_till("T = [2, 1]|[T, CACHE.setdefault('a', 1)]", "CACHE = {}\n" + start))
    assert load_type(type_name(main.Till))().look() == SEEN[0]
    assert not caplog.records


def test_what_plays_in_a_laboratory_is_not_executed_in_hosts(script: Script) -> None:
    text = """
from perdure.testing import Laboratory
class Till:
    def open(self): self.n = 5
    def look(self): return 5
async def story(client): return client.agent(Till, "a").open()
with Laboratory(seed=1) as lab:
    assert __name__ == "__main__"
    if lab is None: lab.play(lambda client: story(client))
"""
    main = script.run(text)
    assert load_type(type_name(main.Till))().look() == 5


@pytest.mark.parametrize(
    "text",
    [
        """
class Till:
    @classmethod
    def fill(cls): CACHE["a"] = 2
    def look(self): return dict(CACHE)
def fill(given):
    given["till"] = Till
    given["till"].fill()
if __name__ == "__main__":
    fill({})
    Runtime().run(Till)
""",
        """
class Helper:
    def __init__(self, runtime): self.runtime = runtime
    def fill(self): CACHE["a"] = 2
class Till:
    def look(self): return dict(CACHE)
if __name__ == "__main__":
    helper = Helper(Runtime())
    helper.fill()
    helper.runtime.run(Till)
""",
    ],
    ids=["through an argument", "by an object that is made with a runtime"],
)
def test_what_the_main_block_changes_by_way_of_others_is_warned_of(
    text: str, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    main = script.run(f"from perdure import Runtime\nCACHE = {{}}\n{text}")
    with caplog.at_level(logging.WARNING):
        type_name(main.Till)
    assert "`if __name__ == '__main__':`, gives or changes CACHE" in caplog.text


def test_what_the_main_block_changes_is_warned_of(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    text = _with_till("N = 1|N", 'if __name__ == "__main__":\n    N = 2\n    print(Runtime().run(Till))')
    main = script.run(text)
    with caplog.at_level(logging.WARNING):
        name = type_name(main.Till)
    assert "`if __name__ == '__main__':`, gives or changes N" in caplog.text
    assert load_type(name)().look() == 1


IN_MAIN = {
    "an import that the module has": ("import os\n", "os.sep", "    import os\n    Runtime().run(Till)\n"),
    "a class that calls its base": (
        "def show(what, give):\n    print(what, give())\n",
        "self.cache",
        "    with Runtime() as runtime:\n        show('t', lambda: runtime.run(Till, 't'))\n",
    ),
    "lambdas of both": (
        "def twice(of):\n    return lambda: 2 * of()\nclass Base:\n    two = staticmethod(twice(lambda: 1))\nSIX = twice(lambda: 3)\n",
        "SIX() + Base.two()",
        "    runtime = cls = Runtime()\n    list(map(lambda base: (runtime.run(Till), cls.run(base)), [Till]))\n",
    ),
    "functions, classes and builtins of both": (
        """
def clean(text):
    return text.strip()
def words(text, least=1):
    return [each for each in map(clean, text.split()) if len(each) >= least]
class Item:
    def __init__(self, n):
        self.n = n
    def twice(self):
        return Item(self.n * 2)
""",
        "[*map(len, words('a b')), Item(1).twice().n]",
        "    print(words('c'), list(map(len, words('d'))), list(filter(clean, 'e')), Item(2).twice().n)\n    Runtime().run(Till)\n",
    ),
    "a name of what both catch": (
        "REASONS = []\ntry:\n    N = int('x')\nexcept ValueError as e:\n    N = str(e)\n    REASONS.append(e)\n    print([e], lambda: e)\n",
        "(N, len(REASONS))",
        "    for e in 'ab':\n        print(e)\n    try:\n        Runtime().run(Till)\n    except Exception as e:\n        print(e)\n",
    ),
    "what loops and files of both are called": (
        "WORDS = []\nfor i in range(3):\n    WORDS.append(i)\nwith open(__file__) as f:\n    TEXT = f.read()\n",
        "(len(WORDS), len(TEXT))",
        "    for i in range(2):\n        print(Runtime().run(Till, i))\n    with open('o', 'w') as f:\n        f.write('x')\n",
    ),
    "what a method changes that is called on a handle": (
        "found = {}\n",
        "found.setdefault('n', 1)",
        "    with Runtime() as runtime:\n        print(runtime.agent(Till, 'x').look())\n",
    ),
    "what a class does when it is run, whose result is changed": (
        """
from contextvars import ContextVar
CURRENT = ContextVar("CURRENT", default=1)
async def story(client):
    result = await client.run(Till)
    output = result.output
    output["sorted"] = sorted(output["found"])
""",
        "CURRENT.set(2) and CURRENT.get()",
        "    story(None).close()\n    Runtime().run(Till)\n",
    ),
}


@pytest.mark.parametrize(("before", "look", "start"), IN_MAIN.values(), ids=IN_MAIN)
def test_what_the_main_block_leaves_as_it_is_is_not_warned_of(
    before: str, look: str, start: str, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    made = f"""
class Till:
    def __init__(self, *given):
        super().__init__(*given)
        self.cache = dict()
    def look(self):
        return {look}
if __name__ == "__main__":
"""
    main = script.run(f"from perdure import Runtime\n{before}{made}{start}")
    with caplog.at_level(logging.WARNING):
        name = type_name(main.Till)
    assert not caplog.records
    assert load_type(name)().look() == SEEN[0]


@pytest.mark.parametrize(
    "member",
    [
        "@exposed\n    def total(self): pass",
        "parts = ' 1'.total() if hasattr(str, 'total') else 0",
    ],
    ids=["decorated", "of a text"],
)
def test_a_function_of_the_main_block_is_no_method_of_that_name(
    member: str, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"""
from perdure import Runtime, exposed
class Till:
    {member}
if __name__ == "__main__":
    rate = [3]
    def total(): return rate
    def show(f): f()
    show(total)
    Runtime()
"""
    main = script.run(text)
    with caplog.at_level(logging.WARNING):
        type_name(main.Till)
    assert not caplog.records


def test_a_module_that_only_the_main_block_imports_is_missing_in_hosts(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    main = script.run(_with_till("|os.sep", 'if __name__ == "__main__":\n    import os\n    Runtime().run(Till)\n'))
    with caplog.at_level(logging.WARNING):
        type_name(main.Till)
    assert "gives or changes os" in caplog.text
    _forget()


def test_a_class_within_the_main_block_is_refused(script: Script) -> None:
    main = script.run('if __name__ == "__main__":\n    class Till: pass')
    with pytest.raises(BadRequest, match="gives or changes Till"):
        type_name(main.Till)


# ---------------------------------------------------------------- how classes come about

LOOK = " look = lambda self: 5"
WAYS = {
    "type()": "def look(self): return 5\nTill = type('Till', (), {'look': look})",
    "a factory that gives it its name": f"def make():\n    class Till:{LOOK}\n"
    "    Till.__qualname__ = 'Till'\n    return Till\nTill = make()",
    "a function that declares it global": f"def make():\n    global Till\n    class Till:{LOOK}\nmake()",
    "exec": f"exec({'class Till:' + LOOK!r})",
    "globals()": "globals()['Till'] = type('Till', (), {'look': lambda self: 5})",
    "a loop": "for n in (4, 5):\n    class Till:\n        n = n\n        def look(self): return self.n",
    "a condition": f"if True:\n    class Till:{LOOK}",
    "twice": f"class Till:\n    def look(self): return 4\nclass Till:{LOOK}",
    "a base": f"class Base:{LOOK}\nclass Till(Base): pass",
    "a dataclass": "import dataclasses\n@dataclasses.dataclass\nclass Till:\n    n: int = 5\n    def look(self): return self.n",
}


@pytest.mark.parametrize("text", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", ["my-script.py", "2.py", "no_suffix"])
def test_a_class_may_come_about_in_many_ways(text: str, name: str, script: Script) -> None:
    main = script.run(f"from perdure import Runtime\n{text}\n{START}", name)
    assert load_type(type_name(main.Till))().look() == 5


NOWHERE = {
    "a class inside a function": (
        f"def make():\n    class Till:{LOOK}\n    return Till\nTill = make()",
        "is defined inside a function",
    ),
    "another name": (
        f"class Shop:{LOOK}\nTill = Shop\ndel Shop",
        "there is no __main__.Shop.*bind it there to the name",
    ),
}


@pytest.mark.parametrize(("text", "said"), NOWHERE.values(), ids=NOWHERE)
def test_a_class_that_nobody_could_find_is_refused_in_true_words(text: str, said: str, script: Script) -> None:
    main = script.run(text)
    with pytest.raises(BadRequest, match=said) as refused:
        type_name(main.Till)
    assert "typed" not in str(refused.value)


def test_a_class_that_a_running_program_makes_is_not_said_to_be_typed(script: Script) -> None:
    main = script.run("")
    exec("class Till: pass", main.__dict__)  # noqa: S102 - what no text of the script shows
    with pytest.raises(
        BadRequest, match=r"is not defined at the top level of .*a-script.py.*define it at the top level"
    ):
        type_name(main.Till)


def test_another_type_of_a_script_is_found_after_the_first(script: Script) -> None:
    main = script.run("Other = type('Other', (), {'n': 3})\nclass Till: pass\n")
    assert load_type(type_name(main.Till)).__name__ == "Till"
    assert load_type(type_name(main.Other)).n == 3


def test_nothing_is_typed_in_a_script_whatever_tracebacks_have_read(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its code would be packed anew after each of them."""
    main = script.run(TILL)
    before = what_is_typed(main.Till)
    monkeypatch.setitem(linecache.cache, "elsewhere.py", (1, None, ["1"], "elsewhere.py"))
    assert what_is_typed(main.Till) == before
    del main.__file__  # as in `python -c`, and at a prompt
    read = what_is_typed(main.Till)
    monkeypatch.setitem(linecache.cache, "<python-input-1>", (1, None, ["1"], "<python-input-1>"))
    assert what_is_typed(main.Till) > read


@pytest.mark.parametrize("name", ["__main__.py", "in_archive.py"])
def test_a_class_within_an_archive_is_refused_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as app:
        app.writestr(name, "class Till: pass")
    monkeypatch.syspath_prepend(str(archive))
    module = ModuleType(name.removesuffix(".py"))
    module.__file__ = f"{archive}/{name}"
    exec("class Till: pass", module.__dict__)  # noqa: S102 - as Python does
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(BadRequest, match=r"Till lies in the archive .*app.pyz.*unpack the archive, or install"):
        type_name(module.Till)


def test_a_class_of_a_script_under_a_debugger_is_called_as_in_the_script(script: Script) -> None:
    main = script.run(TILL)
    del main.__spec__  # as `python -m pdb` has it
    assert type_name(main.Till) == f"script:{script.folder / 'a-script.py'}:Till"
    assert loaded_class(type_name(main.Till)) is main.Till


def test_a_class_or_function_of_a_program_that_a_profiler_keeps_apart_is_asked_for_in_a_module(script: Script) -> None:
    script.run("", "profiler.py")  # as `python -m trace` is `__main__`, and gives that name to what it executes
    program: dict[str, Any] = {"__name__": "__main__", "__file__": "shop.py"}
    exec(TILL + "\ndef look(): ...", program)  # noqa: S102 - as a profiler does
    for name in (lambda: type_name(program["Till"]), lambda: function_name(program["look"], None)):
        with pytest.raises(
            BadRequest, match=r"profiler.py runs the program in a namespace of its own, .* put the .* into a module"
        ):
            name()


def test_a_class_that_is_bound_to_nothing_is_asked_for_under_its_name(script: Script) -> None:
    main = script.run(TILL + "Shop = Till\ndel Till")
    with pytest.raises(BadRequest, match="bind it there to the name that it has"):
        type_name(main.Shop)
