"""Programs with tests in the forms of the usual data sets: one program that passes, and one that does not."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A task."""

    right: str
    wrong: str
    tests: str


RAISES = """
def raises(kind, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")
"""
POINT = "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int\n"
STACK = "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
NODE = "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val, self.next = val, next\n"
ACCOUNT = (
    "class Poor(Exception):\n    def __init__(self, short):\n        super().__init__(f'short of {short}')\n       "
    " self.short = short\n"
)

HONEST: dict[str, Case] = {
    "an assertion": Case("def add(a, b): return a + b", "def add(a, b): return a - b", "assert add(2, 3) == 5"),
    "check(candidate), as HumanEval": Case(
        "from typing import List\ndef below(xs: List[int], t: int) -> bool:\n    return all(x < t for x in xs)",
        "def below(xs, t): return True",
        "METADATA = {'author': 'x'}\ndef check(candidate):\n    assert candidate([1, 2], 5)\n    assert not"
        " candidate([1, 9], 5)\ncheck(below)",
    ),
    "several assertions, as MBPP": Case(
        "def rev(s): return s[::-1]",
        "def rev(s): return s",
        "assert rev('ab') == 'ba'\nassert rev('') == ''\nassert rev('xyz') == 'zyx'",
    ),
    "Solution().f, as LeetCode": Case(
        "class Solution:\n    def twoSum(self, n, t):\n        return next([i, j] for i in range(len(n)) for j in"
        " range(i) if n[i] + n[j] == t)[::-1]",
        "class Solution:\n    def twoSum(self, n, t): return [0, 0]",
        "assert Solution().twoSum([2, 7, 11], 9) == [0, 1]",
    ),
    "a method as candidate": Case(
        "class Solution:\n    def f(self, s: str) -> int: return len(s)",
        "class Solution:\n    def f(self, s): return 0",
        "def check(candidate):\n    assert candidate(s='abc') == 3\ncheck(Solution().f)",
    ),
    "a builtin's name": Case(
        "def sum(a, b): return a * b", "def sum(a, b): return a + b", "assert sum(3, 4) == 12\nassert sum(5, 5) == 25"
    ),
    "floats within a tolerance": Case(
        "def half(x): return x / 2",
        "def half(x): return x // 2",
        "assert abs(half(3) - 1.5) < 1e-6\nassert abs(half(5) - 2.5) < 1e-6",
    ),
    "math.isclose of the program's import": Case(
        "import math\ndef root(x): return math.sqrt(x)",
        "import math\ndef root(x): return x / 2",
        "assert math.isclose(root(2), 2 ** 0.5)",
    ),
    "not a number, and infinity": Case(
        "def f(x): return float(x)",
        "def f(x): return 0.0",
        "assert f('inf') == float('inf')\nassert f('nan') != f('nan')",
    ),
    "tuples are no lists": Case("def f(x): return (x, x)", "def f(x): return [x, x]", "assert f(1) == (1, 1)"),
    "lists are no tuples": Case("def f(x): return [x, x]", "def f(x): return (x, x)", "assert f(1) == [1, 1]"),
    "sets": Case("def f(x): return set(x)", "def f(x): return list(x)", "assert f([1, 1, 2]) == {1, 2}"),
    "frozen sets and tuples in a set": Case(
        "def f(): return {(1, 2), frozenset([3])}", "def f(): return {(1, 2)}", "assert f() == {(1, 2), frozenset([3])}"
    ),
    "dictionaries with keys that are no text": Case(
        "def f(): return {1: 'a', (2, 3): None}", "def f(): return {'1': 'a'}", "assert f() == {1: 'a', (2, 3): None}"
    ),
    "the order of a dictionary": Case(
        "def f(d): return dict(sorted(d.items()))",
        "def f(d): return d",
        "assert list(f({'b': 1, 'a': 2})) == ['a', 'b']",
    ),
    "counters": Case(
        "from collections import Counter\ndef f(s): return Counter(s)",
        "from collections import Counter\ndef f(s): return Counter(s[1:])",
        "assert f('aab') == {'a': 2, 'b': 1}\nassert f('aab').most_common(1) == [('a', 2)]",
    ),
    "defaultdict and OrderedDict": Case(
        "from collections import *\ndef f():\n    d = defaultdict(list)\n    d['a'].append(1)\n    return d\ndef g():"
        " return OrderedDict(a=1)",
        "def f(): return {}\ndef g(): return {}",
        "assert f() == {'a': [1]}\nassert g() == {'a': 1}",
    ),
    "deques": Case(
        "from collections import deque\ndef f(q): q.rotate(1)",
        "def f(q): pass",
        "from collections import deque\nq = deque([1, 2])\nf(q)\nassert q == deque([2, 1])",
    ),
    "None, True and identity": Case(
        "def f(x): return None\ndef g(x): return True",
        "def f(x): return 0\ndef g(x): return 1",
        "assert f(1) is None\nassert g(1) is True",
    ),
    "types": Case(
        "def f(x): return int(x)",
        "def f(x): return float(x)",
        "assert isinstance(f('3'), int)\nassert type(f('3')) is int",
    ),
    "large numbers": Case(
        "def f(n): return 7 ** n", "def f(n): return 7 ** n + 1", "assert f(9000) == 7 ** 9000\nassert f(3) == 343"
    ),
    "text of all kinds": Case(
        "def f(s): return s * 2",
        "def f(s): return s",
        "for s in ('é', '\\x00', '🙂', '\\ud800', ''):\n    assert f(s) == s + s\nassert f('a') == 'aa'",
    ),
    "bytes": Case("def f(s): return s.encode()", "def f(s): return s", "assert f('é') == b'\\xc3\\xa9'"),
    "complex numbers": Case("def f(x): return x * 1j", "def f(x): return x", "assert f(2) == 2j"),
    "fractions, decimals and dates": Case(
        "from fractions import Fraction\nfrom decimal import Decimal\nimport datetime\n"
        "def f(): return [Fraction(1, 3), Decimal('0.10'), datetime.date(2024, 2, 29), datetime.timedelta(1, 2, 3)]",
        "def f(): return [1 / 3, 0.1, '2024-02-29', None]",
        "import datetime, decimal, fractions\nassert f() == [fractions.Fraction(1, 3), decimal.Decimal('0.1'),"
        " datetime.date(2024, 2, 29), datetime.timedelta(days=1, seconds=2, microseconds=3)]\nassert (f()[2] +"
        " datetime.timedelta(1)).month == 3",
    ),
    "an argument changed in place": Case(
        "def order(xs): xs.sort()",
        "def order(xs): return sorted(xs)",
        "xs = [3, 1, 2]\nassert order(xs) is None\nassert xs == [1, 2, 3]",
    ),
    "a nested argument changed in place": Case(
        "def turn(m): m[:] = [list(r) for r in zip(*m[::-1])]\ndef zero(m):\n    m[0][0] = 0",
        "def turn(m): pass\ndef zero(m): pass",
        "m = [[1, 2], [3, 4]]\nturn(m)\nassert m == [[3, 1], [4, 2]]\nrow = m[0]\nzero(m)\nassert row == [0, 1]",
    ),
    "dictionaries and sets changed in place": Case(
        "def f(d, s):\n    d['k'] = 1\n    s.discard(2)",
        "def f(d, s): pass",
        "d, s = {}, {1, 2}\nf(d, s)\nassert (d, s) == ({'k': 1}, {1})",
    ),
    "the argument returned": Case(
        "def f(xs):\n    xs.append(1)\n    return xs",
        "def f(xs): return xs + [1]",
        "xs = []\nassert f(xs) is xs\nassert xs == [1]",
    ),
    "an argument left as it was": Case(
        "def f(xs): return sorted(xs)",
        "def f(xs):\n    xs.sort()\n    return xs",
        "xs = [2, 1]\nassert f(xs) == [1, 2]\nassert xs == [2, 1]",
    ),
    "an expected exception": Case(
        "def f(x):\n    if x < 0: raise ValueError('negative: %d' % x)\n    return x",
        "def f(x): return x",
        RAISES + "assert str(raises(ValueError, f, -1)) == 'negative: -1'\nassert f(1) == 1",
    ),
    "the wrong exception": Case("def f(d): return d['k']", "def f(d): return d.k", RAISES + "raises(KeyError, f, {})"),
    "an exception of the program, with attributes": Case(
        ACCOUNT + "def pay(a, b):\n    if b > a: raise Poor(b - a)\n    return a - b",
        ACCOUNT + "def pay(a, b): return a - b",
        RAISES + "error = raises(Poor, pay, 1, 3)\nassert error.short == 2\nassert str(error) == 'short of"
        " 2'\nraises(Exception, pay, 1, 3)",
    ),
    "a hierarchy of exceptions": Case(
        "class A(ValueError): pass\nclass B(A): pass\ndef f(): raise B('x')",
        "class A(ValueError): pass\nclass B(A): pass\ndef f(): raise A('x')",
        RAISES + "raises(ValueError, f)\nraises(A, f)\nassert raises(B, f).args == ('x',)",
    ),
    "a generator": Case(
        "def f(n):\n    for i in range(n):\n        yield i * i",
        "def f(n):\n    for i in range(n):\n        yield i",
        "assert list(f(4)) == [0, 1, 4, 9]\ng = f(2)\nassert next(g) == 0\nassert sum(f(3)) == 5",
    ),
    "a generator without an end": Case(
        "def f():\n    n = 1\n    while True:\n        yield n\n        n *= 2",
        "def f():\n    while True:\n        yield 1",
        "from itertools import islice\nassert list(islice(f(), 4)) == [1, 2, 4, 8]",
    ),
    "map, filter, zip and views": Case(
        "def f(xs): return map(abs, xs)\ndef g(d): return d.keys()\ndef h(a, b): return zip(a, b)",
        "def f(xs): return map(float, xs)\ndef g(d): return d.values()\ndef h(a, b): return zip(b, a)",
        "assert list(f([-1])) == [1]\nassert g({'a': 1}) == {'a'}\nassert dict(h('ab', 'cd')) == {'a': 'c', 'b': 'd'}",
    ),
    "a class with methods and attributes": Case(
        STACK + "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)",
        STACK + "    def pop(self): return self.items.pop(0)\n    def __len__(self): return len(self.items)",
        "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2\nassert s.items == [1, [2]]\nassert s.pop() =="
        " [2]\nassert s.pop() == 1\nassert not s",
    ),
    "attributes that a test sets": Case(
        "class A:\n    n = 1\n    def twice(self): return self.n * 2",
        "class A:\n    n = 1\n    def twice(self): return 2",
        "a = A()\na.n = 5\nassert a.twice() == 10\nassert hasattr(a, 'n') and not hasattr(a, 'm')\nassert A.n == 1",
    ),
    "properties, class and static methods": Case(
        "class T:\n    def __init__(self, c): self.c = c\n    @property\n    def f(self): return self.c * 9 / 5 + 32\n "
        "   @classmethod\n    def zero(cls): return cls(0)\n    @staticmethod\n    def name(): return 'T'",
        "class T:\n    def __init__(self, c): self.c = c\n    f = 0\n    @classmethod\n    def zero(cls): return"
        " cls(1)\n    @staticmethod\n    def name(): return 'T'",
        "assert T(100).f == 212\nassert T.zero().c == 0\nassert T.name() == 'T'\nassert isinstance(T.zero(), T)",
    ),
    "equality of objects": Case(
        POINT + "def move(p): return Point(p.x + 1, p.y)",
        POINT + "def move(p): return Point(p.x, p.y)",
        "assert move(Point(1, 2)) == Point(2, 2)\nassert Point(1, 2) != Point(2, 1)\nassert [Point(0, 0)] =="
        " [Point(0, 0)]",
    ),
    "operators of a class": Case(
        POINT + "    def __add__(self, o): return Point(self.x + o.x, self.y + o.y)\n    def __mul__(self, k): return"
        " Point(self.x * k, self.y * k)\n    def __lt__(self, o): return self.x < o.x",
        POINT + "    def __add__(self, o): return self\n    def __mul__(self, k): return self\n    def __lt__(self, o):"
        " return False",
        "assert Point(1, 2) + Point(3, 4) == Point(4, 6)\nassert (Point(1, 2) * 3).x == 3\nassert sorted([Point(2, 0),"
        " Point(1, 0)])[0].x == 1",
    ),
    "text of an object": Case(
        "class A:\n    def __init__(self, n): self.n = n\n    def __repr__(self): return f'A({self.n})'",
        "class A:\n    def __init__(self, n): self.n = n",
        "assert str(A(3)) == 'A(3)'\nassert f'{A(4)}' == 'A(4)'\nassert repr([A(5)]) == '[A(5)]'",
    ),
    "containers of a class": Case(
        "class Bag:\n    def __init__(self): self.d = {}\n    def __getitem__(self, k): return self.d[k]\n    def"
        " __setitem__(self, k, v): self.d[k] = v\n    def __delitem__(self, k): del self.d[k]\n    def __iter__(self):"
        " return iter(self.d)\n    def __contains__(self, k): return k in self.d",
        "class Bag(list):\n    def __setitem__(self, k, v): pass",
        "b = Bag()\nb['x'] = 1\nassert b['x'] == 1\nassert 'x' in b and 'y' not in b\nassert list(b) == ['x']\ndel"
        " b['x']\nassert list(b) == []",
    ),
    "a context manager": Case(
        "class C:\n    log = []\n    def __enter__(self):\n        self.log.append('in')\n        return self\n    def"
        " __exit__(self, *a): self.log.append('out')",
        "class C:\n    log = []\n    def __enter__(self): return self\n    def __exit__(self, *a):"
        " self.log.append('out')",
        "with C() as c:\n    assert c.log == ['in']\nassert c.log == ['in', 'out']",
    ),
    "a named tuple": Case(
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(2, 1)",
        "assert f() == (1, 2)\nassert f().x == 1\nx, y = f()\nassert y == 2\nassert f()._asdict() == {'x': 1, 'y': 2}",
    ),
    "an enumeration": Case(
        "from enum import Enum, IntEnum\nclass C(Enum):\n    RED = 1\nclass N(IntEnum):\n    TWO = 2\ndef f(): return"
        " C.RED",
        "from enum import Enum, IntEnum\nclass C(Enum):\n    RED = 1\n    BLUE = 2\nclass N(IntEnum):\n    TWO = 3\ndef"
        " f(): return C.BLUE",
        "assert f() == C.RED\nassert f() is C.RED\nassert C.RED.value == 1\nassert C['RED'].name == 'RED'\nassert N.TWO"
        " == 2",
    ),
    "a subclass of a list": Case(
        "class L(list):\n    def first(self): return self[0]\ndef f(): return L([1, 2])",
        "class L(list):\n    def first(self): return 0\ndef f(): return L([1, 2])",
        "assert f() == [1, 2]\nassert f().first() == 1",
    ),
    "a closure, and a decorator": Case(
        "def counter():\n    n = 0\n    def step():\n        nonlocal n\n        n += 1\n        return n\n    return"
        " step",
        "def counter():\n    return lambda: 1",
        "c, d = counter(), counter()\nassert (c(), c(), d()) == (1, 2, 1)",
    ),
    "a function of the test": Case(
        "def apply(f, xs): return [f(x) for x in xs]",
        "def apply(f, xs): return xs",
        "assert apply(lambda x: x + 1, [1, 2]) == [2, 3]\nassert apply(len, ['a', 'bc']) == [1, 2]\nassert apply(str,"
        " [1]) == ['1']",
    ),
    "a function of the test that raises": Case(
        "def safe(f):\n    try:\n        return f()\n    except ZeroDivisionError:\n        return 'zero'",
        "def safe(f): return f()",
        "assert safe(lambda: 1 / 0) == 'zero'\nassert safe(lambda: 3) == 3",
    ),
    "a decorator around a function of the test": Case(
        "def memo(f):\n    seen = {}\n    def g(x):\n        if x not in seen: seen[x] = f(x)\n        return seen[x]\n"
        "    return g",
        "def memo(f): return f",
        "calls = []\n@memo\ndef square(x):\n    calls.append(x)\n    return x * x\nassert square(3) == 9\nassert"
        " square(3) == 9\nassert calls == [3]",
    ),
    "a linked list of the program's class": Case(
        NODE
        + "class Solution:\n    def reverse(self, h):\n        p = None\n        while h: h.next, p, h = p, h, h.next\n"
        "        return p",
        NODE + "class Solution:\n    def reverse(self, h): return h",
        "head = ListNode(1, ListNode(2, ListNode(3)))\nr = Solution().reverse(head)\nout = []\nwhile r:\n   "
        " out.append(r.val)\n    r = r.next\nassert out == [3, 2, 1]",
    ),
    "objects of the test's own class": Case(
        "def depth(t): return 0 if t is None else 1 + max(depth(t.left), depth(t.right))",
        "def depth(t): return 1",
        "class Tree:\n    def __init__(self, left=None, right=None): self.left, self.right = left, right\nassert"
        " depth(Tree(Tree(), Tree(Tree()))) == 3\nassert depth(None) == 0",
    ),
    "keywords, defaults and variable arguments": Case(
        "def f(a, *args, b=2, **kw): return [a, args, b, kw]",
        "def f(a, *args, b=3, **kw): return [a, args, b, kw]",
        "assert f(1) == [1, (), 2, {}]\nassert f(1, 2, b=3, c=4) == [1, (2,), 3, {'c': 4}]",
    ),
    "constants and globals": Case(
        "LIMIT = 10\nseen = []\ndef f(x): seen.append(x)",
        "LIMIT = 11\nseen = []\ndef f(x): pass",
        "assert LIMIT == 10\nf(1)\nf(2)\nassert seen == [1, 2]",
    ),
    "an import of the program": Case(
        "def f(): return 1",
        "def f(): return 2",
        "from answer import f as g\nimport answer\nassert g() == 1\nassert answer.f() == 1",
    ),
    "unittest without its exit": Case(
        "def f(x): return x * 2",
        "def f(x): return x",
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(2), 4)\n      "
        "  self.assertRaises(TypeError, f, {}) if 0 else None\nresult ="
        " unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\nassert"
        " result.wasSuccessful()",
    ),
    "name and docstring of a function": Case(
        'def f():\n    "Doc."\n',
        "def f(): pass",
        "assert f.__name__ == 'f'\nassert f.__doc__ == 'Doc.'\nassert callable(f)",
    ),
    "a loop of many calls": Case(
        "def f(x): return x * x",
        "def f(x): return x * x if x < 90 else 0",
        "assert all(f(x) == x ** 2 for x in range(100))",
    ),
    "much data": Case(
        "def f(xs): return sorted(xs)",
        "def f(xs): return xs",
        "import random\nxs = list(range(20000))\nrandom.shuffle(xs)\nassert f(xs) == list(range(20000))",
    ),
}
