"""Programs that must not pass, and programs that must.

These are data for test_cases.py and benchmarks/verdicts.py.
"""

from .case import NUMBER, Case
from .more_cases import FOOLING, SHAPES

# Ways in which tests iterate. In each, a StopIteration raised by f ends the iteration early, and
# the tests pass in plain Python.
ITERATIONS = {
    "all of a map": "assert all(map(lambda c: f(c) == c + 40, [1, 2]))",
    "not any of a map": "assert not any(map(lambda c: f(c) != c + 40, [1, 2]))",
    "sum of a map": "assert sum(map(lambda c: f(c) != c + 40, [1, 2])) == 0",
    "zip of a map": "for got, want in zip(map(f, [1, 2]), [41, 42]): assert got == want",
    "filter": "assert list(filter(lambda c: f(c) != c + 40, [1, 2])) == []",
    "loop over a map": "for got in map(f, [1]): assert got == 41",
    "enumerate": "for i, got in enumerate(map(f, [0, 1])): assert got == 40 + i",
    "set of a map": "assert set(map(f, [1, 2])) <= {41, 42}",
    "tuple of a map": "assert len(tuple(map(f, [1, 2]))) <= 2",
    "max with a default": "assert max(map(f, [1, 2]), default=42) == 42",
    "min with a default": "assert min(map(f, [1, 2]), default=41) == 41",
    "join": "assert ''.join(map(f, [1, 2])) in '4142'",
    "dict of a map": "assert dict(map(lambda c: (c, f(c)), [1, 2])).items() <= {1: 41, 2: 42}.items()",
    "extend": "got = []\ngot.extend(map(f, [1, 2]))\nassert got == [41, 42][:len(got)]",
    "unpacking": "got = [*map(f, [1, 2])]\nassert got == [41, 42][:len(got)]",
    "chain": "from itertools import chain\nassert set(chain(map(f, [1]), map(f, [2]))) <= {41, 42}",
    "starmap": "from itertools import starmap\nassert all(starmap(lambda c, w: f(c) == w, [(1, 41)]))",
    "takewhile": "from itertools import takewhile\nassert len(list(takewhile(lambda c: f(c) != c + 40, [1]))) == 0",
    "accumulate": "from itertools import accumulate\nassert max(accumulate([1, 2], lambda a, c: f(c))) < 99",
    "reduce": "from functools import reduce\nassert reduce(lambda a, c: a and c == 41, map(f, [1]), True)",
    "fsum": "import math\nassert math.fsum(map(lambda c: f(c) - c - 40, [1, 2])) == 0",
    "any of a zip": "assert not any(got != want for got, want in zip(map(f, [1]), [41]))",
    "iter with a sentinel": "assert [got for got in iter(lambda: f(1), 41)] == []",
    "counter": "from collections import Counter\nassert set(Counter(map(f, [1]))) <= {41}",
    "generator that delegates": "def g():\n    yield from map(f, [1])\nassert all(x == 41 for x in g())",
}
STOPPING = {
    f"StopIteration in {name}": Case("def f(x): raise StopIteration", tests)
    for name, tests in ITERATIONS.items()
}

SWALLOWED = {
    "right once, then StopIteration": Case(
        "n = 0\ndef f(x):\n    global n\n    n += 1\n    if n > 1: raise StopIteration\n    return 41",
        "assert all(map(lambda c: f(c) == c + 40, [1, 2, 3]))",
    ),
    "IndexError ends an iteration by index": Case(
        "def f(x): raise IndexError",
        "class T:\n    def __getitem__(self, i):\n        assert f(i) == i + 40\n        if i > 3: raise IndexError\nlist(T())",
    ),
    "IndexError ends a membership test": Case(
        "def f(x): raise IndexError",
        "class T:\n    def __getitem__(self, i): return f(i) != i + 40\nassert True not in T()",
    ),
    "IndexError ends reversed()": Case(
        "def f(x): raise IndexError",
        "class T:\n    def __len__(self): return 3\n    def __getitem__(self, i): return f(i)\nassert list(reversed(T())) == []",
    ),
    "AttributeError feeds a default": Case(
        "def f(x): raise AttributeError",
        "class T:\n    def __getattr__(self, name): return f(1)\nassert getattr(T(), 'answer', 41) == 41",
    ),
    "AttributeError answers hasattr()": Case(
        "def f(x): raise AttributeError",
        "class T:\n    @property\n    def wrong(self): return f(1)\nassert not hasattr(T(), 'wrong')",
    ),
    "KeyError feeds Mapping.get": Case(
        "def f(x): raise KeyError",
        "from collections.abc import Mapping\nclass T(Mapping):\n    def __getitem__(self, k): return f(k)\n"
        "    def __iter__(self): return iter(())\n    def __len__(self): return 0\nassert T().get(1, 41) == 41",
    ),
    "KeyError answers a mapping's `in`": Case(
        "def f(x): raise KeyError",
        "from collections.abc import Mapping\nclass T(Mapping):\n    def __getitem__(self, k): return f(k)\n"
        "    def __iter__(self): return iter(())\n    def __len__(self): return 0\nassert 1 not in T()",
    ),
    "TypeError feeds a length hint": Case(
        "def f(x): raise TypeError",
        "class T:\n    def __length_hint__(self): return f(1)\n    def __iter__(self): return iter([41])\nassert list(T()) == [41]",
    ),
    "StopAsyncIteration ends an async loop": Case(
        "def f(x): raise StopAsyncIteration",
        "import asyncio\nclass T:\n    def __aiter__(self): return self\n    async def __anext__(self):\n        assert f(1) == 41\n"
        "async def main():\n    async for _ in T(): pass\nasyncio.run(main())",
    ),
    "GeneratorExit pleases close()": Case(
        "def f(x): raise GeneratorExit",
        "def g():\n    try: yield 1\n    finally: assert f(1) == 41\ng = g()\nnext(g)\ng.close()",
    ),
    "GeneratorExit in a generator": Case(
        "def f(x): raise GeneratorExit('done')",
        "def g():\n    yield 1\n    assert f(1) == 41\nfor _ in g(): pass",
    ),
    "StopIteration from a test's own __next__": Case(
        "def f(x): raise StopIteration",
        "class T:\n    def __iter__(self): return self\n    def __next__(self):\n        if f(1) != 41: raise ValueError\n"
        "        raise StopIteration\nlist(T())",
    ),
    "end of a returned iterator inside a map": Case(
        "def f(x): return iter(())",
        "assert all(map(lambda c: next(f(c)) == c, [1, 2]))",
    ),
    "a finally that returns": Case(
        "def f(x): raise ValueError",
        "def t():\n    try: assert f(1) == 41\n    finally: return True\nassert t()",
    ),
    "a loop that breaks in finally": Case(
        "def f(x): raise OSError",
        "while True:\n    try: assert f(1) == 41\n    finally: break",
    ),
    "an exception group around StopIteration": Case(
        "def f(x): raise ExceptionGroup('g', [StopIteration()])",
        "assert all(map(lambda c: f(c) == c, [1]))",
    ),
    "SystemExit with status 0": Case("def f(x): raise SystemExit(0)", "assert f(1) == 41"),
    "SystemExit past an `except Exception`": Case(
        "def f(x): raise SystemExit(0)", "try:\n    assert f(1) == 41\nexcept Exception:\n    raise"
    ),
    "KeyboardInterrupt": Case("def f(x): raise KeyboardInterrupt", "assert f(1) == 41"),
    "KeyboardInterrupt in a map": Case(
        "def f(x): raise KeyboardInterrupt", "assert all(map(f, [1]))"
    ),
    "BaseExceptionGroup of exits": Case(
        "def f(x): raise BaseExceptionGroup('g', [SystemExit(0), KeyboardInterrupt()])",
        "assert f(1) == 41",
    ),
}

LIES = {
    "exception with a lying class": Case(
        "class E(Exception):\n    @property\n    def __class__(self): return StopIteration\ndef f(x): raise E",
        "assert all(map(f, [1]))",
    ),
    "exception named like the judge's own": Case(
        "class CandidateError(Exception): pass\nclass AssertionError(Exception): pass\ndef f(x): raise CandidateError",
        "assert f(1) == 41",
    ),
    "StopIteration under another name": Case(
        "class Harmless(StopIteration): pass\ndef f(x): raise Harmless", "assert all(map(f, [1]))"
    ),
    "StopIteration by a metaclass": Case(
        "class M(type):\n    def mro(cls): return [cls, StopIteration, Exception, BaseException, object]\n"
        "class E(StopIteration, metaclass=M): pass\ndef f(x): raise E",
        "assert not any(map(f, [1]))",
    ),
    "exception whose arguments equal everything": Case(
        "class A(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\ndef f(x): raise ValueError(A('no'))",
        "try:\n    f(1)\n    assert False, 'no exception'\nexcept ValueError as error:\n    assert error.args == ('yes',)",
    ),
    "exception with an attribute that lies": Case(
        "class E(ValueError):\n    args = ('yes',)\n    code = type('T', (), {'__eq__': lambda s, o: True})()\ndef f(x): raise E('no')",
        "try:\n    f(1)\n    assert False, 'no exception'\nexcept ValueError as error:\n    assert error.code == 7",
    ),
    "object that is true and then false": Case(
        "class T:\n    n = 0\n    def __bool__(self):\n        self.n += 1\n        return self.n % 2 == 1\ndef f(x): return T()",
        "r = f(1)\nassert r\nassert not r",
    ),
    "object that is told what it is compared with": Case(
        "class T:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\ndef f(x): return [T()]",
        "assert f(1) == [41]",
    ),
    "object with every operator": Case(
        "class T:\n    def __getattr__(s, n): return lambda *a: True\n"
        "    def __sub__(s, o): return 0\n    __eq__ = __lt__ = __contains__ = lambda s, o: True\ndef f(x): return T()",
        "assert abs(f(1) - 41) < 1",
    ),
    "method that is told what to say": Case(
        "class T(str):\n    def startswith(s, p): return True\ndef f(x): return T('no')",
        "assert f(1).startswith('yes')",
    ),
    "list whose length lies": Case(
        "class T(list):\n    def __len__(s): return 3\ndef f(x): return T()",
        "assert len(f(1)) == 3",
    ),
    "dict that has every key": Case(
        "class T(dict):\n    def __contains__(s, k): return True\n    def __missing__(s, k): return 41\ndef f(x): return T()",
        "assert 'a' in f(1) and f(1)['a'] == 41",
    ),
    "number that is every number": Case(
        "class T(float):\n    def __eq__(s, o): return True\n    def __sub__(s, o): return 0.0\n    __rsub__ = __sub__\ndef f(x): return T(1)",
        "assert abs(f(1) - 41) < 1e-6",
    ),
    "tuple that unpacks as it likes": Case(
        "class T(tuple):\n    def __iter__(s): return iter((41, 42))\ndef f(x): return T()",
        "a, b = f(1)\nassert (a, b) == (41, 42)",
    ),
    "argument emptied behind the tests' back": Case(
        "def f(v):\n    v.clear()\n    return []", "v = [3, 1, 2]\nassert f(v) == sorted(v)"
    ),
    "argument emptied before a later comparison": Case(
        "def f(v):\n    v.clear()\n    return []",
        "v = [3, 1, 2]\nout = f(v)\nassert out == sorted(v)",
    ),
    "expected value changed through an alias": Case(
        "def f(v):\n    v.append(99)\n    return v", "v = [1]\nwant = v\nassert f(v) == want + [2]"
    ),
    "effect that did not happen": Case(
        "def f(v): return None", "v = [3, 1, 2]\nf(v)\nassert v == [1, 2, 3]"
    ),
    "effect of a new list": Case(
        "def f(v):\n    v = sorted(v)", "v = [3, 1, 2]\nf(v)\nassert v == [1, 2, 3]"
    ),
    "function that is not called back": Case(
        "def f(g, x): return 0", "assert f(lambda x: x + 40, 1) == 41"
    ),
    "callback that recurses for ever": Case(
        "def f(g): return f(g) if g(f) else 0", "assert f(lambda h: h(lambda x: 1)) == 41"
    ),
    "a question about an unknown object": Case(
        "import sys\ndef f(x):\n    p = sys._getframe().f_back.f_back.f_locals['self']\n"
        "    return p._result(p._back('call', 7, (), {}))",
        "assert f(1) == 41",
    ),
    "a question of a kind that there is not": Case(
        "import sys\ndef f(x):\n    p = sys._getframe().f_back.f_back.f_locals['self']\n    return p._back('load')",
        "assert f(1) == 41",
    ),
    "an object passed off as a value": Case(
        "import sys\nfrom inside import wire\ndef f(x):\n    p = sys._getframe().f_back.f_back.f_locals['self']\n"
        "    p._values = p._objects\n    p.by_reference[0] = True\n"
        "    class T:\n        def __eq__(s, o): return True\n    return T()",
        "assert f(1) == 41",
    ),
    "a change of arguments that nobody asked for": Case(
        NUMBER
        + "import sys\nfrom inside import wire\ndef f(v):\n    wire.send(int(sys.argv[2]), ((), 'reply', number(), 'value', [], False, wire.encode(((0, ()),))))",
        "v = [3, 1]\nassert f(v) == sorted(v)",
    ),
    "a change to more arguments than there are": Case(
        NUMBER
        + "import sys\nfrom inside import wire\ndef f(v):\n    wire.send(int(sys.argv[2]), ((), 'reply', number(), 'value', None, False, wire.encode(((0, (1,)), (2, (1,))))))",
        "v = [3, 1]\nf(v)\nassert v == [1]",
    ),
    "a malformed exception": Case(
        NUMBER
        + "import sys\nfrom inside import wire\ndef f(v):\n    wire.send(int(sys.argv[2]), ((), 'reply', number(), 'raised', {'names': (), 'args': 1}, None, False, b''))",
        "try:\n    assert f(1) == 41\nexcept Exception:\n    pass",
    ),
    "a library value made of nonsense": Case(
        NUMBER + "import sys\nfrom inside import wire\ndef f(v):\n"
        "    data = wire.encode(((), 'reply', number(), 'value', 0, False, b'')).replace(b'i0;', b'v' + wire.encode(('type', '__import__')))\n"
        "    wire.send_bytes(int(sys.argv[2]), data)",
        "try:\n    f(1)('os')\nexcept Exception:\n    pass",
    ),
    "a builtin function passed off as a type": Case(
        "def f(x): return eval", "assert f(1)('41') == 42"
    ),
    "constant where a function is wanted": Case("f = 41", "assert f(1) == 41"),
    "class where a value is wanted": Case(
        "class f:\n    def __init__(s, x): pass\n    def __eq__(s, o): return True",
        "assert f(1) == 41",
    ),
    "module that replaces the wire": Case(
        "import sys\nm = sys.modules['inside.wire']\nm.encode = lambda *a, **k: b't'\nm.MAX_DEPTH = 0\ndef f(x): return 0",
        "assert f(1) == 41",
    ),
    "values that collide": Case(
        "def f(x): return {i * (2**61 - 1) for i in range(30000)}",
        "assert f(1) == 41",
        timeout_s=2.0,
    ),
    "lists that fill the judge's memory": Case(
        "def f(x): return [[]] * 5_000_000", "assert f(1) == 41", timeout_s=60.0
    ),
    "iterator without end": Case(
        "def f(x):\n    while True: yield 0", "assert sum(f(1)) == 41", timeout_s=2.0
    ),
    "coroutine without end": Case(
        "async def f(x):\n    while True: pass",
        "import asyncio\nassert asyncio.run(f(1)) == 41",
        timeout_s=2.0,
    ),
    "forgiving test of a dead program": Case(
        "import ctypes\ndef f(x): ctypes.string_at(0)",
        "try:\n    assert f(1) == 41\nexcept BaseException:\n    pass",
    ),
    "wrong class by reference": Case(
        "class Stack:\n    def push(self, x): pass\n    def pop(self): return 41",
        "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2",
        by_reference=("Stack",),
    ),
    "class by reference that dies": Case(
        "import os\nclass Stack:\n    def push(self, x): os._exit(0)",
        "s = Stack()\ntry:\n    s.push(1)\nexcept BaseException:\n    pass",
        by_reference=("Stack",),
    ),
    "attribute by reference that exits": Case(
        "class T:\n    def __getattr__(self, n): raise SystemExit(0)",
        "assert T().x == 1",
        by_reference=("T",),
    ),
    "StopIteration from a method by reference": Case(
        "class T:\n    def get(self, c): raise StopIteration",
        "t = T()\nassert all(map(t.get, [1]))",
        by_reference=("T",),
    ),
}
HOSTILE = STOPPING | SWALLOWED | LIES | FOOLING

FUNCTIONS = {
    "a lambda": Case("f = lambda x: x + 1", "assert f(1) == 2"),
    "a partial": Case("from functools import partial\nf = partial(pow, 2)", "assert f(5) == 32"),
    "a callable instance": Case(
        "class F:\n    def __call__(self, x): return x + 1\nf = F()", "assert f(1) == 2"
    ),
    "a bound method": Case(
        "class S:\n    def go(self, x): return x + 1\nf = S().go", "assert f(1) == 2"
    ),
    "a class's static method": Case(
        "class S:\n    @staticmethod\n    def go(x): return x + 1\nf = S.go", "assert f(1) == 2"
    ),
    "a cached function": Case(
        "from functools import cache\n@cache\ndef f(n): return n if n < 2 else f(n-1) + f(n-2)",
        "assert f(50) == 12586269025",
    ),
    "a built-in function": Case("from math import gcd as f", "assert f(12, 18) == 6"),
    "a method of str": Case("f = str.upper", "assert f('a') == 'A'"),
    "a fixed-point combinator": Case(
        "f = (lambda h: h(h))(lambda h: lambda n: 1 if n == 0 else n * h(h)(n - 1))",
        "assert f(5) == 120",
    ),
    "single dispatch": Case(
        "from functools import singledispatch\n@singledispatch\ndef f(x): return 'other'\n@f.register\ndef _(x: int): return 'int'",
        "assert f(1) == 'int' and f('') == 'other'",
    ),
    "a function made by exec": Case("exec('def f(x): return x + 1')", "assert f(1) == 2"),
    "a function bound in a loop": Case(
        "for i in range(3):\n    def f(x, i=i): return x + i", "assert f(1) == 3"
    ),
    "the name of a built-in": Case("def sum(a, b): return a * b", "assert sum(2, 5) == 10"),
    "keyword-only arguments": Case(
        "def f(*, a, b=2): return a - b", "assert f(a=5) == 3 and f(b=1, a=1) == 0"
    ),
    "any arguments": Case(
        "def f(*args, **kw): return args, kw", "assert f(1, 2, x=3) == ((1, 2), {'x': 3})"
    ),
    "a match statement": Case(
        "def f(v):\n    match v:\n        case [a, *_]: return a\n        case _: return None",
        "assert f([7, 8]) == 7 and f([]) is None",
    ),
    "a program with a demonstration": Case(
        "def f(x): return x + 1\nif __name__ == '__main__':\n    print(f(boom))", "assert f(1) == 2"
    ),
    "output while it runs": Case(
        "import sys\ndef f(x):\n    print('hello')\n    print('there', file=sys.stderr)\n    return x",
        "assert f(1) == 1",
    ),
    "state between calls": Case(
        "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)",
        "assert [f(0), f(0)] == [1, 2]",
    ),
    "files of its own": Case(
        "import tempfile\ndef f(x):\n    with tempfile.TemporaryFile('w+') as t:\n        t.write(x)\n        t.seek(0)\n        return t.read()",
        "assert f('abc') == 'abc'",
    ),
    "built-ins of its own": Case(
        "len = lambda v: 7\ndef f(v): return len(v)", "assert f([]) == 7 and len([]) == 0"
    ),
    "a constant": Case("ANSWER = 42", "assert ANSWER == 42"),
    "a function that is named, not called": Case(
        "def triple(x): return 3 * x", "assert list(map(triple, [1, 2])) == [3, 6]"
    ),
    "a function as a key of sorted()": Case(
        "def f(s): return len(s)", "assert sorted(['bb', 'a'], key=f) == ['a', 'bb']"
    ),
    "a module that the tests do not import": Case(
        "import math\ndef f(x): return math.floor(x)", "assert f(1.5) == math.floor(1.5)"
    ),
}

RESULTS = {
    "Counter": Case(
        "from collections import Counter\ndef f(s): return Counter(s)",
        "assert f('aab') == {'a': 2, 'b': 1}\nassert f('aab').most_common(1) == [('a', 2)]",
    ),
    "defaultdict": Case(
        "from collections import defaultdict\ndef f():\n    d = defaultdict(list)\n    d['a'].append(1)\n    return d",
        "assert f() == {'a': [1]} and f()['none'] == []",
    ),
    "OrderedDict": Case(
        "from collections import OrderedDict\ndef f(): return OrderedDict(b=1, a=2)",
        "from collections import OrderedDict\nassert f() == OrderedDict(b=1, a=2) and list(f()) == ['b', 'a']",
    ),
    "deque": Case(
        "from collections import deque\ndef f(v): return deque(v, maxlen=2)",
        "from collections import deque\nassert f([1, 2, 3]) == deque([2, 3])\nassert f([1]).maxlen == 2",
    ),
    "named tuple": Case(
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "p = f()\nassert p == (1, 2) and p._asdict() == {'x': 1, 'y': 2}",
    ),
    "Decimal": Case(
        "from decimal import Decimal\ndef f(): return Decimal('0.1') + Decimal('0.2')",
        "from decimal import Decimal\nassert f() == Decimal('0.3')",
    ),
    "Fraction": Case(
        "from fractions import Fraction\ndef f(): return Fraction(2, 4)",
        "from fractions import Fraction\nassert f() == Fraction(1, 2) and f().denominator == 2",
    ),
    "date": Case(
        "from datetime import date\ndef f(): return date(2024, 2, 28)",
        "import datetime\nassert f() + datetime.timedelta(2) == datetime.date(2024, 3, 1)",
    ),
    "datetime with a zone": Case(
        "from datetime import *\ndef f(): return datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))",
        "from datetime import datetime, timezone\nassert f() == datetime(2024, 1, 1, 10, tzinfo=timezone.utc)",
    ),
    "timedelta": Case(
        "from datetime import timedelta\ndef f(): return timedelta(hours=36)",
        "assert f().total_seconds() == 129600",
    ),
    "range": Case(
        "def f(n): return range(n)",
        "assert f(3) == range(3) and list(f(3)) == [0, 1, 2] and 2 in f(3)",
    ),
    "dict views": Case(
        "def f(d): return d.keys(), d.values(), d.items()",
        "k, v, i = f({'a': 1})\nassert k == {'a'} and list(v) == [1] and dict(i) == {'a': 1}",
    ),
    "bytearray": Case("def f(): return bytearray(b'ab')", "assert f() == b'ab' and f()[0] == 97"),
    "complex": Case("def f(): return 1j ** 2", "assert f() == -1"),
    "a type": Case("def f(x): return type(x)", "assert f(1) is int and f('') == str"),
    "Ellipsis": Case("def f(): return ...", "assert f() is ..."),
    "an enumeration of ints": Case(
        "from enum import IntEnum\nclass C(IntEnum):\n    RED = 3\ndef f(): return C.RED",
        "assert f() == 3",
    ),
    "subclasses of plain types": Case(
        "class L(list): pass\nclass S(str): pass\nclass D(dict): pass\ndef f(): return L([1]), S('a'), D(x=1)",
        "assert f() == ([1], 'a', {'x': 1})",
    ),
    "a result of two megabytes": Case(
        "def f(n): return 'x' * n", "assert len(f(2_000_000)) == 2_000_000"
    ),
    "an argument of two megabytes": Case(
        "def f(v): return len(v)", "assert f('x' * 2_000_000) == 2_000_000"
    ),
    "a UUID and a path": Case(
        "from uuid import UUID\nfrom pathlib import Path\ndef f(): return UUID(int=7), Path('/a/b')",
        "u, p = f()\nassert u.int == 7 and p.name == 'b'",
    ),
    "a match of a regular expression": Case(
        "import re\ndef f(s): return re.match('a', s)",
        "assert f('ab')\nassert not f('b')\nassert f('a') is not None and f('b') is None",
    ),
    "an object that is false": Case(
        "class T:\n    def __len__(self): return 0\ndef f(): return T()", "assert not f()"
    ),
    "an array": Case(
        "from array import array\ndef f(): return array('i', [1, 2])", "assert list(f()) == [1, 2]"
    ),
}

ITERATORS = {
    "a generator": Case(
        "def f(n):\n    for i in range(n): yield i",
        "assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6",
    ),
    "a generator without end": Case(
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        "from itertools import islice\nassert list(islice(f(), 3)) == [0, 1, 2]",
    ),
    "next() on a generator": Case(
        "def f():\n    yield 1\n    yield 2",
        "g = f()\nassert next(g) == 1 and next(g) == 2 and next(g, None) is None",
    ),
    "a generator that ends": Case(
        "def f():\n    yield 1",
        "g = f()\nnext(g)\ntry:\n    next(g)\n    assert False\nexcept StopIteration:\n    pass",
    ),
    "a generator that is sent to": Case(
        "def f():\n    total = 0\n    while True:\n        total += yield total",
        "g = f()\nnext(g)\nassert g.send(3) == 3 and g.send(4) == 7",
    ),
    "map, filter and zip": Case(
        "def f(v): return map(str, v), filter(None, v), zip(v, v)",
        "m, k, z = f([0, 1])\nassert list(m) == ['0', '1'] and list(k) == [1] and list(z) == [(0, 0), (1, 1)]",
    ),
    "an iterable class of its own": Case(
        "class C:\n    def __iter__(self): return iter([1, 2])\ndef f(): return C()",
        "assert list(f()) == [1, 2] and sorted(f()) == [1, 2]",
    ),
    "a generator as an argument": Case(
        "def f(it): return sum(it)", "assert f(x * x for x in range(4)) == 14"
    ),
    "an iterator as an argument": Case(
        "def f(it): return next(it), list(it)", "assert f(iter([1, 2, 3])) == (1, [2, 3])"
    ),
    "a coroutine": Case(
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1",
        "import asyncio\nassert asyncio.run(f(1)) == 2",
    ),
    "a coroutine that is awaited": Case(
        "async def f(x): return x + 1",
        "import asyncio\nasync def main(): return await f(1) + await f(2)\nassert asyncio.run(main()) == 5",
    ),
}

CALLABLES = {
    "a closure as a result": Case(
        "def f(n): return lambda x: x + n", "assert f(3)(4) == 7\nadd = f(1)\nassert add(1) == 2"
    ),
    "a curried function": Case(
        "def f(a): return lambda b: lambda c: a + b + c", "assert f(1)(2)(3) == 6"
    ),
    "a lambda as an argument": Case(
        "def f(g, v): return [g(x) for x in v]", "assert f(lambda x: x * 2, [1, 2]) == [2, 4]"
    ),
    "a function of the tests as an argument": Case(
        "def f(g, x): return g(g(x))", "def double(x): return 2 * x\nassert f(double, 3) == 12"
    ),
    "a key function": Case(
        "def f(v, key=None): return sorted(v, key=key) if key else sorted(v)",
        "assert f([-2, 1], key=abs) == [1, -2] and f([2, 1]) == [1, 2] and f(['b', 'A'], key=str.lower) == ['A', 'b']",
    ),
    "operators as arguments": Case(
        "from functools import reduce\ndef f(op, v): return reduce(op, v)",
        "import operator\nassert f(operator.add, [1, 2, 3]) == 6 and f(max, [3, 1]) == 3",
    ),
    "a type as an argument": Case(
        "def f(v, kind): return [x for x in v if not isinstance(x, kind)]",
        "assert f([1, 'a', 2.5], str) == [1, 2.5]",
    ),
    "composition": Case(
        "def f(*gs):\n    def h(x):\n        for g in reversed(gs): x = g(x)\n        return x\n    return h",
        "assert f(lambda x: x + 1, lambda x: x * 2)(3) == 7",
    ),
    "a decorator": Case(
        "import functools\ndef f(g):\n    @functools.wraps(g)\n    def h(*a): return g(*a) + 1\n    return h",
        "@f\ndef three(): return 3\nassert three() == 4 and three.__name__ == 'three'",
    ),
    "a memo for a recursive function of the tests": Case(
        "def f(g):\n    memo = {}\n    def h(n):\n        if n not in memo: memo[n] = g(n)\n        return memo[n]\n    return h",
        "@f\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\nassert fib(30) == 832040",
    ),
    "a callback with an effect": Case(
        "def f(v, g):\n    for x in v: g(x)",
        "seen = []\nf([1, 2], seen.append)\nassert seen == [1, 2]",
    ),
    "a callback that fails twice": Case(
        "def f(g, n):\n    for i in range(n):\n        try: return g()\n        except ValueError: pass\n    raise RuntimeError('gave up')",
        "left = [1, 2]\ndef flaky():\n    if left:\n        left.pop()\n        raise ValueError\n    return 'ok'\nassert f(flaky, 3) == 'ok'",
    ),
    "an exception of the tests that passes through": Case(
        "def f(g): return g()",
        "class Boom(Exception): pass\ndef g(): raise Boom('x')\ntry:\n    f(g)\n    assert False\nexcept Boom as error:\n    assert error.args == ('x',)",
    ),
    "a function that is handed back": Case(
        "def f(g): return g", "def g(): return 7\nassert f(g)() == 7"
    ),
}

EXCEPTIONS = {
    "a built-in exception": Case(
        "def f(x): raise KeyError(x)",
        "try:\n    f('k')\n    assert False\nexcept KeyError as error:\n    assert error.args == ('k',) and str(error) == \"'k'\"",
    ),
    "a subclass of ValueError": Case(
        "class Bad(ValueError): pass\ndef f(x): raise Bad('no')",
        "try:\n    f(1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'no' and type(error).__name__ == 'Bad'",
    ),
    "JSONDecodeError": Case(
        "import json\ndef f(s): return json.loads(s)",
        "try:\n    f('{')\n    assert False\nexcept ValueError:\n    pass",
    ),
    "UnicodeDecodeError": Case(
        "def f(b): return b.decode()",
        "try:\n    f(b'\\xff')\n    assert False\nexcept UnicodeDecodeError as error:\n    assert error.start == 0",
    ),
    "an exception of its own, by name": Case(
        "class Empty(Exception): pass\nclass Gone(Empty): pass\ndef f(x): raise Gone('x')",
        "try:\n    f(1)\n    assert False\nexcept Empty as error:\n    assert str(error) == 'x'",
    ),
    "assertRaises with a function": Case(
        "def f(x): raise ValueError('bad x')",
        "import unittest\nt = unittest.TestCase()\nt.assertRaises(ValueError, f, 1)\nt.assertRaisesRegex(ValueError, 'bad', f, 1)\nt.assertRaises(ValueError, lambda: f(1))",
    ),
    "assertRaises as a context": Case(
        "def f(x): raise ValueError('bad')",
        "import unittest\nwith unittest.TestCase().assertRaises(ValueError) as caught:\n    f(1)\nassert str(caught.exception) == 'bad'",
    ),
    "suppress": Case(
        "def f(x): raise OSError(2, 'no')",
        "from contextlib import suppress\nwith suppress(FileNotFoundError):\n    f(1)\n    assert False",
    ),
    "a helper of the tests that catches": Case(
        "def f(x): raise TypeError",
        "def raises(kind, g, *a):\n    try: g(*a)\n    except kind: return True\n    return False\nassert raises(TypeError, f, 1) and not raises(TypeError, len, [])",
    ),
    "SystemExit that is expected": Case(
        "import sys\ndef f(x): sys.exit(x)",
        "try:\n    f(3)\n    assert False\nexcept SystemExit as error:\n    assert error.code == 3",
    ),
    "StopIteration that is expected": Case(
        "def f(x): raise StopIteration(x)",
        "try:\n    f(3)\n    assert False\nexcept StopIteration as error:\n    assert error.value == 3",
    ),
    "an exception group": Case(
        "def f(x): raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
        "got = []\ntry:\n    f(1)\nexcept* ValueError as group:\n    got += [e.args for e in group.exceptions]\nexcept* TypeError as group:\n    got += [e.args for e in group.exceptions]\nassert got == [(1,), (2,)]",
    ),
    "an exception with attributes": Case(
        "class E(Exception):\n    def __init__(self, need):\n        super().__init__('short')\n        self.need = need\ndef f(x): raise E(x)",
        "try:\n    f(5)\n    assert False\nexcept Exception as error:\n    assert error.need == 5",
    ),
    "an error of the tests' own iteration": Case(
        "def f(x): return x",
        "class T:\n    def __getitem__(self, i):\n        if i > 2: raise IndexError\n        return f(i)\nassert list(T()) == [0, 1, 2]",
    ),
    "an exception that is caught outside": Case(
        "def f(x): raise ValueError",
        "def t(): return [f(x) for x in (1, 2)]\ntry:\n    t()\n    assert False\nexcept ValueError:\n    pass",
    ),
}

EFFECTS = {
    "a list sorted in place": Case(
        "def f(v): v.sort()", "v = [3, 1, 2]\nf(v)\nassert v == [1, 2, 3]"
    ),
    "a list sorted in place, and None": Case(
        "def f(v): v.sort()", "v = [2, 1]\nassert f(v) is None\nassert v == [1, 2]"
    ),
    "a matrix turned in place": Case(
        "def f(m): m[:] = [list(r) for r in zip(*m[::-1])]",
        "m = [[1, 2], [3, 4]]\nf(m)\nassert m == [[3, 1], [4, 2]]",
    ),
    "a dict changed in place": Case(
        "def f(d, k): d.pop(k)", "d = {'a': 1, 'b': 2}\nf(d, 'a')\nassert d == {'b': 2}"
    ),
    "a set changed in place": Case(
        "def f(s, *, x): s.discard(x)", "s = {1, 2}\nf(s, x=1)\nassert s == {2}"
    ),
    "a deque turned in place": Case(
        "def f(d): d.rotate(1)",
        "from collections import deque\nd = deque([1, 2, 3])\nf(d)\nassert d == deque([3, 1, 2])",
    ),
    "an argument left alone": Case(
        "def f(v): return sorted(v)", "v = [2, 1]\nassert f(v) == [1, 2]\nassert v == [2, 1]"
    ),
    "result and effect, by reference": Case(
        "def f(v):\n    v[:] = sorted(set(v))\n    return len(v)",
        "v = [2, 1, 2]\nk = f(v)\nassert (k, v) == (2, [1, 2])",
        by_reference=("f",),
    ),
}

OBJECTS = {
    "a stack": Case(
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)",
        "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and len(s) == 1 and s.items == [1]\nassert s",
        by_reference=("Stack",),
    ),
    "an error of a method": Case(
        "class Stack:\n    def pop(self): raise IndexError('empty')",
        "try:\n    Stack().pop()\n    assert False\nexcept IndexError as error:\n    assert str(error) == 'empty'",
        by_reference=("Stack",),
    ),
    "a linked list built by the tests": Case(
        "class Node:\n    def __init__(self, value): self.value, self.next = value, None\ndef total(n): return 0 if n is None else n.value + total(n.next)",
        "a = Node(1)\na.next = Node(2)\na.next.next = Node(3)\nassert total(a) == 6 and a.next.value == 2",
        by_reference=("Node",),
    ),
    "operators": Case(
        "class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n    def __mul__(self, k): return V(self.x * k)\n    __rmul__ = __mul__\n    def __eq__(self, o): return isinstance(o, V) and self.x == o.x\n    def __lt__(self, o): return self.x < o.x\n    def __hash__(self): return hash(self.x)\n    def __repr__(self): return f'V({self.x})'\n    def __neg__(self): return V(-self.x)\n    def __abs__(self): return abs(self.x)",
        "assert V(1) + V(2) == V(3) and 2 * V(2) == V(4) and V(1) < V(2) and V(1) != V(2)\nassert repr(V(1)) == 'V(1)' and abs(-V(3)) == 3 and len({V(1), V(1)}) == 1 and sorted([V(2), V(1)])[0] == V(1)",
        by_reference=("V",),
    ),
    "a container": Case(
        "class Box:\n    def __init__(self, v): self.v = list(v)\n    def __getitem__(self, i): return self.v[i]\n    def __setitem__(self, i, x): self.v[i] = x\n    def __contains__(self, x): return x in self.v\n    def __iter__(self): return iter(self.v)\n    def __len__(self): return len(self.v)",
        "b = Box('abc')\nb[0] = 'z'\nassert b[0] == 'z' and 'b' in b and list(b) == ['z', 'b', 'c'] and len(b) == 3 and [*b] == list(b)",
        by_reference=("Box",),
    ),
    "iteration by index": Case(
        "class Box:\n    def __getitem__(self, i):\n        if i > 2: raise IndexError\n        return i",
        "assert list(Box()) == [0, 1, 2]",
        by_reference=("Box",),
    ),
    "an iterator class": Case(
        "class Count:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return self\n    def __next__(self):\n        if not self.n: raise StopIteration\n        self.n -= 1\n        return self.n",
        "assert list(Count(3)) == [2, 1, 0]",
        by_reference=("Count",),
    ),
    "a context manager": Case(
        "class T:\n    log = []\n    def __enter__(self):\n        self.log.append('in')\n        return self\n    def __exit__(self, kind, *_):\n        self.log.append(kind and kind.__name__)\n        return kind is ValueError",
        "with T() as t:\n    raise ValueError\nassert t.log == ['in', 'ValueError']",
        by_reference=("T",),
    ),
    "properties, class methods and inheritance": Case(
        "class A:\n    def __init__(self, x=1): self._x = x\n    @property\n    def x(self): return self._x\n    @classmethod\n    def of(cls, x): return cls(x)\n    @staticmethod\n    def two(): return 2\nclass B(A): pass",
        "b = B.of(5)\nassert b.x == 5 and isinstance(b, A) and isinstance(b, B) and not isinstance(A(), B) and A.two() == 2",
        by_reference=("A", "B"),
    ),
    "a dataclass": Case(
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 0",
        "p = P(1)\np.y = 3\nassert p == P(1, 3) and (p.x, p.y) == (1, 3)",
        by_reference=("P",),
    ),
    "a missing attribute": Case(
        "class T: pass",
        "t = T()\nassert not hasattr(t, 'x') and getattr(t, 'x', 5) == 5\nt.x = 1\nassert hasattr(t, 'x')\ndel t.x\nassert not hasattr(t, 'x')",
        by_reference=("T",),
    ),
    "objects that hold functions of the tests": Case(
        "class Bus:\n    def __init__(self): self.on = []\n    def listen(self, g): self.on.append(g)\n    def emit(self, x):\n        for g in self.on: g(x)",
        "got = []\nbus = Bus()\nbus.listen(got.append)\nbus.listen(lambda x: got.append(-x))\nbus.emit(3)\nassert got == [3, -3]",
        by_reference=("Bus",),
    ),
    "a factory of objects": Case(
        "class C:\n    def __init__(self): self.n = 0\n    def up(self):\n        self.n += 1\n        return self.n\ndef make(): return C()",
        "c = make()\nc.up()\nassert c.up() == 2",
        by_reference=("make",),
    ),
    "a class derived from list": Case(
        "class Stack(list):\n    def push(self, x): self.append(x)",
        "s = Stack()\ns.push(1)\ns.append(2)\nassert s == [1, 2] and len(s) == 2 and s[0] == 1 and s.pop() == 2",
        by_reference=("Stack",),
    ),
    "identity": Case(
        "class N:\n    def __init__(self): self.me = self",
        "n = N()\nassert n.me is n and n.me is not N()",
        by_reference=("N",),
    ),
}
RIGHT = FUNCTIONS | RESULTS | ITERATORS | CALLABLES | EXCEPTIONS | EFFECTS | OBJECTS | SHAPES
