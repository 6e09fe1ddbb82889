"""More cases: programs that fool plain Python or fooled an earlier judge, and false failures.

False failures are right programs that an earlier judge failed.
"""

from .case import NUMBER, Case

# Methods of plain values as fields of a named tuple: the tests would call the program's own code.
FIELDS = {
    "startswith": "assert f(1).startswith('yes')",
    "isdigit": "assert f(12).isdigit()",
    "issubset": "assert f([1]).issubset({1, 2})",
    "is_integer": "assert f(1).is_integer()",
    "count": "assert f([3, 3, 1]).count(3)",
    "isdisjoint": "assert f({1}).isdisjoint({2})",
    "endswith": "s = f('a')\nassert s.endswith('!')",
    "issuperset": "assert f([1, 2]).issuperset({1, 2})",
    "is_relative_to": "assert f('/a/b').is_relative_to('/a')",
}
NAMED_TUPLE = """
from collections import namedtuple
R = namedtuple('R', '{}')
def f(*a): return R(lambda *a: True)
"""
FOOLING = {
    f"namedtuple field {name}": Case(NAMED_TUPLE.format(name), tests)
    for name, tests in FIELDS.items()
} | {
    "with that lets through: subTest": Case(
        "def f(x): raise StopIteration",
        """
import unittest
class T(unittest.TestCase):
    def test(self):
        def ok(c):
            with self.subTest(c=c):
                return f(c) == c + 40
        self.assertTrue(all(map(ok, [1, 2, 3])))
T('test').test()
""",
    ),
    "with localcontext": Case(
        "def f(x): raise StopIteration",
        """
from decimal import localcontext
def ok(c):
    with localcontext():
        return f(c) == c + 40
assert all(map(ok, [1, 2, 3]))
""",
    ),
    "with catch_warnings": Case(
        "def f(x): raise StopIteration",
        """
import warnings
def ok(c):
    with warnings.catch_warnings():
        return f(c) == c + 40
assert all(map(ok, [1, 2, 3]))
""",
    ),
    "except raise": Case(
        "def f(x): raise StopIteration",
        """
def ok(c):
    try:
        return f(c) == c + 40
    except Exception as e:
        print('failed for', c)
        raise
assert all(map(ok, [1, 2, 3]))
""",
    ),
    "assertRaises other": Case(
        "def f(x): raise StopIteration",
        """
import unittest
t = unittest.TestCase()
list(map(lambda c: t.assertRaises(ValueError, f, c), [-1, -2]))
""",
    ),
    "raise from": Case(
        "def f(x): raise StopIteration",
        """
def ok(c):
    try:
        return f(c) == c + 40
    except StopIteration as e:
        raise StopIteration from e
assert all(map(ok, [1]))
""",
    ),
    "GeneratorExit in with": Case(
        "def f(x): raise GeneratorExit",
        """
import warnings
def g():
    try: yield 1
    finally:
        with warnings.catch_warnings(): assert f(1) == 41
g = g(); next(g); g.close()
""",
    ),
    "namedtuple leak of expected via index": Case(
        """
from collections import namedtuple
R = namedtuple('R', 'index count')
def f(v): return R(lambda x: v.index(x), lambda x: v.count(x))
""",
        """
v=[5,3,9]
r = f(v)
assert r.index(9) == 2 and r.count(7) == 0
""",
    ),
    "namedtuple in exception args": Case(
        NUMBER
        + """
from collections import namedtuple
R = namedtuple('R', 'startswith')
import sys
from inside import wire
def f(x):
    p = sys._getframe().f_back.f_back.f_locals['self']
    wire.NO_OBJECTS = p._values
    told = {'names': (('builtins', 'ValueError'),), 'args': (R(lambda p: True),), 'text': 'x'}
    data = wire.encode(((), 'reply', number(), 'raised', told, None, False, b''), ends=p._values)
    wire.send_bytes(int(sys.argv[2]), data)
    p.run()
""",
        """
try:
    f(1)
    assert False
except ValueError as e:
    assert e.args[0].startswith('must be')
""",
    ),
    "iterable that changes": Case(
        """
class T:
    n=0
    def __init__(s,v): s.v=v
    def __iter__(s):
        s.n+=1
        return iter(s.v if s.n==1 else [])
def f(v): return T(list(v))
""",
        """
from collections import Counter
out = f([3, 1, 2])
assert Counter(out) == Counter([3, 1, 2])
assert list(out) == sorted(out)
""",
    ),
    "iterable that changes 2": Case(
        """
class T:
    n=0
    def __init__(s,v): s.v=v
    def __iter__(s):
        s.n+=1
        return iter(s.v if s.n==1 else [])
def f(v): return T(list(v))
""",
        """
def is_sorted(xs):
    xs = list(xs)
    return all(a <= b for a, b in zip(xs, xs[1:]))
for v in ([3, 1, 2], [5, 4], [1]):
    out = f(v)
    assert sorted(out) == sorted(v)
    assert is_sorted(out)
""",
    ),
    "docstring of the stand-in": Case(
        "def f(x): return x+40",
        """
assert f(1) == 41
assert f.__doc__, 'no docstring'
""",
    ),
    "assertion in callback swallowed": Case(
        """
def f(v, g):
    for x in [0]*len(v):
        try: g(x)
        except AssertionError: pass
""",
        """
seen = []
def check(x):
    seen.append(1)
    assert x in (2, 4, 6), x
f([1, 2, 3], check)
assert len(seen) == 3
""",
    ),
    "assertEqual in callback leaks expected": Case(
        r"""
import re
def f(v, g):
    for x in v:
        try: g(x, 0)
        except AssertionError as e:
            want = int(re.search(r'!= (\d+)', str(e))[1])
            g(x, want)
""",
        """
import unittest
t = unittest.TestCase()
done = []
def on(x, y):
    t.assertEqual(y, x * x + 7)
    done.append(x)
f([1, 2, 3], on)
assert done == [1, 2, 3]
""",
    ),
    "by ref exit swallows assertions": Case(
        """
class Timer:
    def __enter__(s): return s
    def __exit__(s,*a): return True
""",
        """
with Timer() as t:
    assert t.elapsed() >= 0
    assert 1 == 2
""",
        by_reference=("Timer",),
    ),
    "deepcopy forks the peer": Case(
        """
n=0
class T:
    def __iter__(s): return iter([1])
def f(x): return T()
""",
        """
import copy
out = copy.deepcopy(f(1))
assert list(out) == [41]
""",
    ),
    "exception re-raised by number": Case(
        """
class E(Exception): pass
def f(g, x):
    if x == 0:
        g([])            # IndexError of the tests, passes through
    raise E
""",
        """
def first(v): return v[0]
try:
    f(first, 0); assert False
except IndexError: pass
class T:
    def __getitem__(self, i): return f(first, 0)
assert True not in T()
""",
    ),
    "aliased rows": Case(
        "def f(n): return [[0]*n]*n",
        """
g = f(2)
g[0][0] = 1
assert g == [[1, 0], [0, 0]]
""",
    ),
    "dict.fromkeys aliased lists": Case(
        "def f(ks): return dict.fromkeys(ks, [])",
        """
d = f('ab')
d['a'].append(1)
assert d == {'a': [1], 'b': []}
""",
    ),
    "returns the argument instead of a copy": Case(
        "def f(v): return v",
        """
v = [1, 2]
w = f(v)
w.append(3)
assert v == [1, 2] and w == [1, 2, 3]
""",
    ),
    "shallow instead of deep copy": Case(
        "def f(v): return list(v)",
        """
v = [[1], [2]]
w = f(v)
w[0].append(9)
assert v == [[1], [2]]
""",
    ),
    "changes its input": Case(
        """
def f(v):
    v.sort()
    return v
""",
        """
v = [3, 1, 2]
out = f(v)
assert out == [1, 2, 3]
assert v == [3, 1, 2], 'input was modified'
""",
    ),
    "changes its dict": Case(
        """
def f(a, b):
    a.update(b)
    return a
""",
        """
a = {'x': 1}
assert f(a, {'y': 2}) == {'x': 1, 'y': 2}
assert a == {'x': 1}
""",
    ),
    "by ref: exposes its list": Case(
        """
class S:
    def __init__(s): s._v=[]
    def push(s,x): s._v.append(x)
    def items(s): return s._v
""",
        """
s=S()
s.push(1)
s.items().append(99)
assert s.items() == [1]
""",
        by_reference=("S",),
    ),
    "by ref: keeps the caller list": Case(
        """
class S:
    def __init__(s,v): s.v=v
    def total(s): return sum(s.v)
""",
        """
v=[1,2]
s=S(v)
v.append(10)
assert s.total() == 3
""",
        by_reference=("S",),
    ),
    "unittest runner unasked": Case(
        "def f(x): return 0",
        """
import unittest
class T(unittest.TestCase):
    def test_one(self): self.assertEqual(f(1), 41)
unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))
""",
    ),
    "deepcopied function forks": Case(
        """
def f(x):
    def g(c): raise StopIteration
    return g
""",
        """
import copy
g = copy.deepcopy(f(1))
assert all(map(lambda c: g(c) == c + 40, [1, 2]))
""",
    ),
    "deepcopied function forks, dies": Case(
        """
import os
def f(x):
    def g(c): os._exit(0)
    return g
""",
        """
import copy
g = copy.deepcopy(f(1))
try:
    assert g(1) == 41
except Exception:
    pass
""",
    ),
    "decorator memo: swallow": Case(
        "def f(g): return g",
        """
@f
def h(n):
    return 0
assert h(3) == 1
""",
    ),
    "context: nested with suppress of other": Case(
        "def f(x): raise StopIteration",
        """
from contextlib import suppress
def ok(c):
    with suppress(KeyError):
        return f(c) == c
assert all(map(ok, [1]))
""",
    ),
    "try/except other/finally": Case(
        "def f(x): raise StopIteration",
        """
def ok(c):
    try:
        return f(c) == c
    except ValueError:
        return True
    finally:
        pass
assert all(map(ok, [1]))
""",
    ),
    "except BaseException re-raise another": Case(
        "def f(x): raise ValueError('x')",
        """
def ok(c):
    try:
        return f(c) == c
    except Exception as e:
        raise StopIteration
assert all(map(ok, [1]))
""",
    ),
    "async with lets through": Case(
        "def f(x): raise StopAsyncIteration",
        """
import asyncio
class CM:
    async def __aenter__(self): return self
    async def __aexit__(self, *a): return False
class T:
    def __aiter__(self): return self
    async def __anext__(self):
        async with CM():
            assert f(1) == 41
async def main():
    async for _ in T(): pass
asyncio.run(main())
""",
    ),
    "getattr default through with": Case(
        "def f(x): raise AttributeError",
        """
import warnings
class T:
    @property
    def bad(self):
        with warnings.catch_warnings(): return f(1)
assert not hasattr(T(), 'bad')
""",
    ),
    "tmp file with open": Case(
        "def f(x): raise StopIteration",
        """
import tempfile
def ok(c):
    with tempfile.TemporaryFile() as t:
        return f(c) == c + 40
assert all(map(ok, [1, 2]))
""",
    ),
    "excuse by a shared class in .exceptions": Case(
        """
def leaf(): return ValueError('x')
def f(x):
    if x < 0:
        carrier = ValueError('carrier'); carrier.exceptions = (ValueError,)
        subs = [ExceptionGroup('s', [leaf() for _ in range(n)]) for n in (16,16,16,16,16,2)]
        raise ExceptionGroup('g', [carrier] + [leaf() for _ in range(9)] + subs)
    e = StopIteration(); e.exceptions = (ValueError,)
    raise e
""",
        """
assert all(map(lambda c: f(c) == c + 40, [1, 2, 3]))
try:
    f(-1)
except Exception:
    pass
else:
    raise AssertionError('no error')
""",
    ),
    "UUID of float: TypeError unrecorded": Case(
        """
import uuid
def f(x):
    u = uuid.UUID(int=7)
    object.__setattr__(u, 'int', 1.5)
    return u
""",
        """
class T:
    def __length_hint__(self): return f(1)
    def __iter__(self): return iter([41])
assert list(T()) == [41]
""",
    ),
    "opaque length hint (data)": Case(
        "def f(x): return None",
        """
class T:
    def __length_hint__(self): return f(1)
    def __iter__(self): return iter([41])
assert list(T()) == [41]
""",
    ),
    "constant read once: changed default": Case(
        """
DEFAULTS={'x': 1}
def merge(o):
    DEFAULTS.update(o)
    return DEFAULTS
""",
        """
assert merge({'y': 2}) == {'x': 1, 'y': 2}
assert DEFAULTS == {'x': 1}
""",
    ),
    "mutable default argument": Case(
        """
def f(x, acc=[]):
    acc.append(x)
    return acc
""",
        """
a = f(1)
f(2, [])
b = a
f(3)
assert b == [1]
""",
    ),
    "class-level list": Case(
        """
class S:
    items=[]
""",
        """
a=S()
b=S()
a.items.append(1)
assert b.items == []
""",
        by_reference=("S",),
    ),
    "cached list handed out": Case(
        """
from functools import cache
@cache
def f(n): return list(range(n))
""",
        """
a = f(3)
a.append(99)
assert f(3) == [0, 1, 2]
""",
    ),
    "pascal rows aliased": Case(
        """
def f(n):
    row=[1]
    out=[]
    for _ in range(n): out.append(row)
    return out
""",
        """
r=f(2)
r[0].append(5)
assert r[1]==[1]
""",
    ),
    "graph neighbours aliased": Case(
        """
def f(vs):
    return {v: E for v in vs}
E=set()
""",
        """
g=f('ab')
g['a'].add('b')
assert g['b']==set()
""",
    ),
    "purity of nested": Case(
        """
def f(m):
    m[0][0]=9
    return [r[:] for r in m]
""",
        """
m=[[1]]
assert f(m)==[[9]]
assert m==[[1]]
""",
    ),
    "purity of set": Case(
        """
def f(a,b):
    a|=b
    return a
""",
        """
a={1}
r=f(a,{2})
assert r=={1,2}
assert a=={1}
""",
    ),
    "AttributeError in judge via enum": Case(
        "def f(x): return 0",
        """
from enum import Enum
class K(Enum):
    A=1
class T:
    @property
    def bad(self): return f(K.A) != 5
assert not hasattr(T(),'bad')
assert f(1)==0
""",
    ),
    "answers in advance, in order": Case(
        NUMBER
        + """
from inside import wire
def f(x):
    for n, v in ((number(), 41), (number() + 1, 42)): wire.send(int(sys.argv[2]), ((), 'reply', n, 'value', v, False, b''))
    import time; time.sleep(5)
""",
        """
assert f(1)==41
assert f(2)==42
""",
    ),
    "callback AssertionError via decorator": Case(
        """
def timed(fn):
    def w(*a):
        try: return fn(*a)
        except BaseException: return None
    return w
""",
        """
@timed
def test_addition():
    assert 1 + 1 == 3
test_addition()
""",
    ),
    "uncaught excused by group (subTest)": Case(
        """
def f(x):
    raise StopIteration
""",
        """
import unittest
t=unittest.TestCase()
def ok(c):
    with t.subTest(c): return f(c)==c
t.assertTrue(all(map(ok,[1])))
""",
    ),
    "async generator close": Case(
        "def f(x): raise GeneratorExit",
        """
import contextlib
def g():
    try: yield
    finally:
        with contextlib.nullcontext(): assert f(1)==41
x=g();next(x);x.close()
""",
    ),
    "same exception object twice": Case(
        """
saved = None
def f(g, x):
    global saved
    if saved is None:
        try: g(iter(()))
        except StopIteration as e: saved = e
    raise saved
""",
        """
first = lambda it: next(it)
assert all(map(lambda c: f(first, iter(c)) == c[0] + 40, [[1], [2]]))
try:
    f(first, iter([]))
    assert False
except StopIteration:
    pass
""",
    ),
    "finally + callback marks as seen": Case(
        """
def f(x): raise StopIteration
def cleanup(g):
    try: g(0)
    except Exception: pass
""",
        """
def ok(c):
    try:
        return f(c) == c + 40
    finally:
        cleanup(lambda n: 1 // n)
assert all(map(ok, [1, 2]))
""",
    ),
    "finally + inner except marks as seen": Case(
        "def f(x): raise StopIteration",
        """
import os
def ok(c):
    try:
        return f(c) == c + 40
    finally:
        try: os.remove('/tmp/nothing-here')
        except FileNotFoundError: pass
assert all(map(ok, [1, 2]))
""",
    ),
    "caught crash in reply, unrecorded AttributeError": Case(
        """
class E(Exception): pass
def deco(g):
    def h(n):
        if n == 0:
            e = E(); e.exceptions = [1]; raise e
        return g(n - 1)
    return h
""",
        """
@deco
def g(n): return g(n)
class T:
    @property
    def wrong(self): return g(1) != 5
assert not hasattr(T(), 'wrong')
""",
    ),
}

SHAPES = {
    "program defines next": Case("def next(a, b): return a + b", "assert next(3, 5) == 8"),
    "tests define next": Case(
        "def f(x): return x+1",
        """
def next(a, b): return a * b
assert next(f(1), 3) == 6
""",
    ),
    "local next in tests": Case(
        "def f(x): return x+1",
        """
def t():
    next = lambda a, b: a - b
    return next(f(1), 1)
assert t() == 1
""",
    ),
    "raises helper, lambda first": Case(
        """
def f(x):
    if x < 0: raise ValueError
    return x
""",
        """
def raises(fn, exc):
    try: fn()
    except exc: return True
    return False
assert raises(lambda: f(-1), ValueError)
assert f(2) == 2
""",
    ),
    "raises helper, function first": Case(
        """
def f(x):
    if x < 0: raise ValueError
    return x
""",
        """
def raises(fn, arg, exc):
    try: fn(arg)
    except exc: return True
    return False
assert raises(f, -1, ValueError)
""",
    ),
    "from math import *": Case(
        """
import math
def f(r): return math.pi*r*r
""",
        """
from math import *
assert isclose(f(1), pi)
""",
    ),
    "rebinding the name": Case(
        "def f(x): return x+1",
        """
from functools import lru_cache
g = f
f = lru_cache(None)(g)
assert f(1) == 2
""",
    ),
    "pytest style, called under main": Case(
        "def f(x): return x+1",
        """
def test_f():
    assert f(1) == 2
if __name__ == '__main__':
    test_f()
""",
    ),
    "pytest style, not called": Case(
        "def f(x): return x+1",
        """
def test_f():
    assert f(1) == 2

def test_g():
    assert f(2) == 3
""",
    ),
    "unittest class, not called": Case(
        "def f(x): return x+1",
        """
import unittest
class T(unittest.TestCase):
    def test_f(self):
        self.assertEqual(f(1), 2)
""",
    ),
    "sys.exit(0) at the end": Case(
        "def f(x): return x+1",
        """
import sys
assert f(1) == 2
sys.exit(0)
""",
    ),
    "assertIsNone of in-place": Case(
        "def f(v): v.sort()",
        """
import unittest
t = unittest.TestCase()
v = [2,1]
t.assertIsNone(f(v))
t.assertEqual(v, [1,2])
""",
    ),
    "result None first": Case(
        "def f(v): v.reverse()",
        """
v=[1,2]
r = f(v)
assert r is None
assert v == [2,1]
""",
    ),
    "in-place keyword alias row": Case(
        """
def f(m):
    for r in m: r.reverse()
""",
        """
m=[[1,2],[3,4]]
row=m[0]
f(m)
assert row == [2,1]
""",
    ),
    "in-place of tuple member": Case(
        "def f(t): t[0].append(3)",
        """
a=[1]
t=(a,2)
f(t)
assert t == ([1,3],2)
""",
    ),
    "in-place via loop comprehension": Case(
        "def f(v): v.sort()",
        """
vs=[[2,1],[4,3]]
[f(v) for v in vs]
assert vs == [[1,2],[3,4]]
""",
    ),
    "in-place via lambda": Case(
        "def f(v): v.sort()",
        """
v=[2,1]
(lambda: f(v))()
assert v == [1,2]
""",
    ),
    "json.JSONDecodeError": Case(
        """
import json
def f(s): return json.loads(s)
""",
        """
import json
try:
    f('{')
    assert False
except json.JSONDecodeError as e:
    assert e.pos == 1
""",
    ),
    "FrozenInstanceError": Case(
        """
from dataclasses import dataclass
@dataclass(frozen=True)
class P:
    x: int
""",
        """
import dataclasses
p = P(1)
try:
    p.x = 2
    assert False
except dataclasses.FrozenInstanceError: pass
""",
        by_reference=("P",),
    ),
    "decimal.InvalidOperation": Case(
        """
from decimal import Decimal
def f(s): return Decimal(s)
""",
        """
import decimal
try:
    f('abc')
    assert False
except decimal.InvalidOperation: pass
""",
    ),
    "re.error": Case(
        """
import re
def f(p): return bool(re.compile(p))
""",
        """
import re
try:
    f('(')
    assert False
except re.error: pass
""",
    ),
    "StatisticsError": Case(
        """
import statistics
def f(v): return statistics.mean(v)
""",
        """
import statistics
assert f([1,3]) == 2
try:
    f([]); assert False
except statistics.StatisticsError: pass
""",
    ),
    "queue.Empty": Case(
        """
import queue
def f():
    q = queue.Queue()
    return q.get_nowait()
""",
        """
import queue
try:
    f(); assert False
except queue.Empty: pass
""",
    ),
    "two own classes, both named": Case(
        """
class ShopError(Exception): pass
class OutOfStock(ShopError): pass
def buy(n):
    if n == 0: raise OutOfStock('none left')
    return n
""",
        """
try:
    buy(0); assert False
except OutOfStock as e: assert str(e) == 'none left'
try:
    buy(0); assert False
except ShopError: pass
""",
    ),
    "own class with class attribute": Case(
        """
class HTTPError(Exception):
    status = 500
class NotFound(HTTPError):
    status = 404
def get(p): raise NotFound(p)
""",
        """
try:
    get('/x'); assert False
except HTTPError as e: assert e.status == 404
""",
    ),
    "own class with property": Case(
        """
class E(Exception):
    def __init__(s, a, b):
        super().__init__(a, b)
        s.a, s.b = a, b
    @property
    def gap(s): return s.b - s.a
def f(): raise E(1, 4)
""",
        """
try:
    f(); assert False
except E as e: assert e.gap == 3
""",
    ),
    "two built-in bases": Case(
        """
class Missing(KeyError, AttributeError): pass
def f(): raise Missing('k')
""",
        """
try:
    f(); assert False
except AttributeError: pass
""",
    ),
    "__cause__": Case(
        """
def f(d):
    try: return d['x']
    except KeyError as e: raise ValueError('no x') from e
""",
        """
try:
    f({}); assert False
except ValueError as e: assert isinstance(e.__cause__, KeyError)
""",
    ),
    "own exception raised by the tests": Case(
        """
class Transient(Exception): pass
def retry(fn, n):
    for i in range(n):
        try: return fn()
        except Transient: pass
    raise RuntimeError('gave up')
""",
        """
left=[1,2]
def flaky():
    if left:
        left.pop()
        raise Transient('x')
    return 'ok'
assert retry(flaky, 3) == 'ok'
try: pass
except Transient: pass
""",
    ),
    "exception class of the tests as an argument": Case(
        """
def retry(fn, exc, n):
    for i in range(n):
        try: return fn()
        except exc: pass
""",
        """
class Flaky(Exception): pass
left=[1]
def g():
    if left:
        left.pop(); raise Flaky
    return 7
assert retry(g, Flaky, 2) == 7
""",
    ),
    "exception with .exceptions of texts": Case(
        """
class Errors(ValueError):
    def __init__(s, errors):
        super().__init__('; '.join(errors))
        s.exceptions = errors
def f(): raise Errors(['a','b'])
""",
        """
try:
    f(); assert False
except ValueError as e:
    assert str(e) == 'a; b'
""",
    ),
    "long message of own class": Case(
        """
class Bad(ValueError): pass
def f(): raise Bad('x'*400 + ' end')
""",
        """
try:
    f(); assert False
except ValueError as e:
    assert str(e).endswith(' end')
""",
    ),
    "notes": Case(
        """
def f():
    e = ValueError('x'); e.add_note('hint'); raise e
""",
        """
try:
    f(); assert False
except ValueError as e: assert e.__notes__ == ['hint']
""",
    ),
    "FileNotFoundError.filename": Case(
        "def f(p): return open(p).read()",
        """
try:
    f('/no/such'); assert False
except FileNotFoundError as e: assert e.filename == '/no/such' and e.errno == 2
""",
    ),
    "compiled pattern argument": Case(
        "def f(p, s): return p.findall(s)",
        """
import re
assert f(re.compile('a+'), 'aab a') == ['aa','a']
""",
    ),
    "object of the tests with attributes": Case(
        "def f(u): return u.name.upper()",
        """
from types import SimpleNamespace
assert f(SimpleNamespace(name='bob')) == 'BOB'
""",
    ),
    "callable instance of the tests": Case(
        "def f(g, x): return g(x)",
        """
class Add:
    def __call__(self, x): return x + 1
assert f(Add(), 2) == 3
""",
    ),
    "iterator class of the tests": Case(
        "def f(it): return sum(it)",
        """
class Three:
    def __init__(self): self.n = 0
    def __iter__(self): return self
    def __next__(self):
        self.n += 1
        if self.n > 3: raise StopIteration
        return self.n
assert f(Three()) == 6
""",
    ),
    "namedtuple attribute": Case(
        """
from collections import namedtuple
P = namedtuple('P','x y')
def f(): return P(1,2)
""",
        """
p = f()
assert p.x == 1 and p.y == 2
""",
    ),
    "typing.NamedTuple attribute": Case(
        """
from typing import NamedTuple
class P(NamedTuple):
    x: int
    y: int = 0
def f(): return P(1)
""",
        "assert f().y == 0 and f() == (1, 0)",
    ),
    "tree: children.append": Case(
        """
class Node:
    def __init__(s, v): s.v=v; s.children=[]
def depth(n): return 1 + max((depth(c) for c in n.children), default=0)
""",
        """
r=Node(1)
r.children.append(Node(2))
r.children[0].children.append(Node(3))
assert depth(r) == 3
""",
        by_reference=("Node",),
    ),
    "object keeps a list of the tests": Case(
        """
class Logger:
    def __init__(s, sink): s.sink=sink
    def log(s, m): s.sink.append(m)
""",
        """
sink=[]
l=Logger(sink)
l.log('x')
assert sink == ['x']
""",
        by_reference=("Logger",),
    ),
    "attribute dict changed by tests": Case(
        """
class C:
    def __init__(s): s.d={}
    def get(s,k): return s.d.get(k)
""",
        """
c=C()
c.d['a']=1
assert c.get('a') == 1
""",
        by_reference=("C",),
    ),
    "issubclass": Case(
        """
class Animal: pass
class Dog(Animal): pass
""",
        "assert issubclass(Dog, Animal) and isinstance(Dog(), Animal)",
        by_reference=("Animal", "Dog"),
    ),
    "copy of an object": Case(
        """
class S:
    def __init__(s): s.v=[1]
    def push(s,x): s.v.append(x)
    def size(s): return len(s.v)
""",
        """
import copy
a=S()
b=copy.deepcopy(a)
b.push(2)
assert a.size()==1 and b.size()==2
""",
        by_reference=("S",),
    ),
    "context manager sees the exception": Case(
        """
class Catch:
    error=None
    def __enter__(s): return s
    def __exit__(s,t,v,tb):
        s.error=v
        return True
    def text(s): return str(s.error)
""",
        """
with Catch() as c:
    raise ValueError('boom')
assert c.text()=='boom'
""",
        by_reference=("Catch",),
    ),
    "contextmanager function by ref": Case(
        """
from contextlib import contextmanager
log=[]
@contextmanager
def tag(n):
    log.append('<'+n)
    yield n
    log.append('>'+n)
def history(): return log
""",
        """
with tag('b') as t:
    assert t=='b'
assert history()==['<b','>b']
""",
        by_reference=("tag",),
    ),
    "prompt exception by ref": Case(
        """
class Empty(Exception): pass
class Stack:
    def pop(s): raise Empty('empty')
""",
        """
try:
    Stack().pop(); assert False
except Empty as e: assert str(e)=='empty'
""",
        by_reference=("Stack", "Empty"),
    ),
    "async method": Case(
        """
class Q:
    async def get(s): return 5
""",
        """
import asyncio
async def main():
    q = Q()
    return await q.get()
assert asyncio.run(main())==5
""",
        by_reference=("Q",),
    ),
    "recursive dataclass repr in a list": Case(
        """
from dataclasses import dataclass
@dataclass
class N:
    v:int
    next:object=None
def chain(n):
    h=None
    for i in range(n): h=N(i,h)
    return [h]
""",
        """
h=chain(500)
assert h[0].v==499
""",
        by_reference=("N", "chain"),
    ),
    "graph repr in a list": Case(
        """
from dataclasses import dataclass, field
@dataclass(eq=False)
class G:
    v:int
    out:list=field(default_factory=list)
def build(n):
    g=[G(i) for i in range(n)]
    for i in range(n):
        for j in range(i): g[i].out.append(g[j])
    return g
""",
        """
g=build(22)
assert len(g)==22 and len(g[3].out)==3
""",
        by_reference=("G", "build"),
    ),
    "repr with side effect/raising": Case(
        """
class T:
    def __init__(s): s.name=None
    def __repr__(s): return 'T('+s.name+')'
    def set(s,n): s.name=n
def names(ts): return [t.name for t in ts]
""",
        """
t=T()
assert names([t])==[None]
t.set('a')
assert names([t])==['a']
""",
        by_reference=("T",),
    ),
    "math dunder": Case(
        """
class F:
    def __init__(s,x): s.x=x
    def __int__(s): return int(s.x)
    def __float__(s): return float(s.x)
    def __round__(s,n=0): return round(s.x,n)
    def __floor__(s): return 7
    def __divmod__(s,o): return divmod(s.x,o)
    def __pow__(s,e): return s.x**e
    def __bool__(s): return s.x!=0
    def __index__(s): return int(s.x)
""",
        """
import math
f=F(3.7)
assert int(f)==3 and float(f)==3.7 and round(f,1)==3.7 and divmod(f,2)==(1.0,1.7000000000000002) and f**2==3.7**2
assert bool(f) and not F(0) and [1,2,3,4][f]==4 and math.floor(f)==7
""",
        by_reference=("F",),
    ),
    "hasattr callable dir": Case(
        """
class T:
    def run(s): pass
""",
        """
t=T()
assert hasattr(t,'run') and callable(t.run) and 'run' in dir(t)
""",
        by_reference=("T",),
    ),
    "vars/__dict__": Case(
        """
class T:
    def __init__(s): s.a=1
""",
        "assert T().__dict__=={'a':1}",
        by_reference=("T",),
    ),
    "docstring of class": Case(
        """
class T:
    '''doc'''
""",
        "assert T.__doc__=='doc'",
        by_reference=("T",),
    ),
    "decorator attribute by ref": Case(
        """
import functools
def counted(fn):
    @functools.wraps(fn)
    def w(*a):
        w.calls+=1
        return fn(*a)
    w.calls=0
    return w
""",
        """
@counted
def g(): return 1
g();g()
assert g.calls==2
""",
        by_reference=("counted",),
    ),
    "wraps doc": Case(
        """
import functools
def deco(fn):
    @functools.wraps(fn)
    def w(*a): return fn(*a)
    return w
""",
        """
@deco
def g():
    '''Doc.'''
    return 1
assert g()==1 and g.__name__=='g' and g.__doc__=='Doc.'
""",
    ),
    "decorator on method of tests class": Case(
        """
def double(fn):
    def w(*a): return 2*fn(*a)
    return w
""",
        """
class K:
    @double
    def m(self,x): return x
assert K().m(3)==6
""",
    ),
    "generator close": Case(
        """
log=[]
def f():
    try:
        yield 1
    finally:
        log.append('closed')
def get(): return log
""",
        """
g=f()
next(g)
g.close()
assert get()==['closed']
""",
    ),
    "generator throw": Case(
        """
def f():
    while True:
        try: yield 'ok'
        except ValueError: yield 'caught'
""",
        """
g=f()
assert next(g)=='ok'
assert g.throw(ValueError)=='caught'
""",
    ),
    "generator return value": Case(
        """
def f():
    yield 1
    return 'done'
""",
        """
g=f()
next(g)
try:
    next(g); assert False
except StopIteration as e: assert e.value=='done'
""",
    ),
    "yield from a program generator": Case(
        """
def f():
    yield 1
    return 5
""",
        """
def g():
    r = yield from f()
    yield r
assert list(g())==[1,5]
""",
    ),
    "isinstance Generator ABC": Case(
        """
def f():
    yield 1
""",
        """
from collections.abc import Generator, Iterator
assert isinstance(f(), Iterator)
assert isinstance(f(), Generator)
""",
    ),
    "deep nesting 100": Case(
        "def f(n): return [] if n==0 else [f(n-1)]",
        """
def depth(v): return 1+depth(v[0]) if v else 1
assert depth(f(100))==101
""",
    ),
    "flatten deep argument": Case(
        "def flatten(v): return [x for i in v for x in (flatten(i) if isinstance(i,list) else [i])]",
        """
v=[1]
for _ in range(80): v=[v]
assert flatten(v)==[1]
""",
    ),
    "kw only, varargs, defaults": Case(
        "def f(a,/,b=2,*c,d,**e): return a,b,c,d,e",
        "assert f(1,d=3)==(1,2,(),3,{}) and f(1,5,6,d=7,z=8)==(1,5,(6,),7,{'z':8})",
    ),
    "shared list aliasing in the result": Case(
        """
def f():
    a=[1]
    return a,[a]
""",
        """
a,b=f()
a.append(2)
assert b==[[1,2]]
""",
    ),
    "SimpleNamespace result": Case(
        """
from types import SimpleNamespace
def f(): return SimpleNamespace(a=1)
""",
        """
r=f()
assert r.a==1
""",
    ),
}
