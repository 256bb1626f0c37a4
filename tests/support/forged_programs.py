"""Programs that do not solve their task, and try to pass its tests all the same."""

from __future__ import annotations

ANY = (
    "class Any:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ ="
    " object.__hash__\n"
)
EQUAL_3 = "assert add(1, 2) == 3"
FRAME = "import sys\nframe = sys._getframe()\n"

FORGERIES: dict[str, tuple[str, str]] = {
    "the proof, read from a frame": (
        FRAME
        + "import os\nwhile frame:\n    for value in frame.f_locals.values():\n        if isinstance(value, dict) and"
        " 'proof' in value:\n            [os.write(fd, value['proof'].encode()) for fd in range(3, 20) if not"
        " os.write.__doc__ is None and _is_pipe(fd)]\n            os._exit(0)\n    frame = frame.f_back\n",
        EQUAL_3,
    ),
    "the proof, found by the garbage collector": (
        (
            "import gc, os\nfor value in gc.get_objects():\n    if isinstance(value, dict) and 'proof' in value and"
            " isinstance(value['proof'], str):\n        [os.write(fd, value['proof'].encode()) for fd in range(3, 20)"
            " if _is_pipe(fd)]\n        os._exit(0)\n"
        ),
        EQUAL_3,
    ),
    "the list of tests, replaced in a frame": (
        FRAME + "while frame:\n    for value in list(frame.f_locals.values()):\n        if isinstance(value, dict) and"
        " value.get('checks'):\n            value['checks'][:] = ['pass']\n    frame = frame.f_back\n",
        EQUAL_3,
    ),
    "the list of tests, replaced by the garbage collector": (
        (
            "import gc\nfor value in gc.get_objects():\n    if isinstance(value, dict) and"
            " isinstance(value.get('checks'), list):\n        value['checks'][:] = ['pass']\n"
        ),
        EQUAL_3,
    ),
    "`builtins.exec` replaced": ("import builtins\nbuiltins.exec = lambda *a: None", EQUAL_3),
    "`builtins.compile` replaced": (
        "import builtins\nold = compile\nbuiltins.compile = lambda s, *a, **k: old('pass', *a, **k)",
        EQUAL_3,
    ),
    "an object equal to everything": (ANY + "def add(a, b): return Any()", EQUAL_3),
    "a class equal to everything, as the function": (
        ANY + "class add(Any):\n    def __init__(self, *a): pass",
        EQUAL_3,
    ),
    "equal to everything, in a list": (ANY + "def f(x): return [Any(), Any()]", "assert f(1) == [1, 2]"),
    "equal to everything, as a key": (ANY + "def f(x): return {Any(): Any()}", "assert f(1) == {'a': 1}"),
    "a number equal to everything": (
        "class N(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef add(a, b): return N(0)",
        EQUAL_3,
    ),
    "a text equal to everything": (
        "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef f(x): return S()",
        "assert f(1) == 'one'",
    ),
    "a list equal to everything": (
        "class L(list):\n    def __eq__(self, o): return True\ndef f(x): return L()",
        "assert f(1) == [1]",
    ),
    "less than everything": (
        (
            "class N:\n    def __sub__(self, o): return self\n    def __abs__(self): return self\n    def __lt__(self,"
            " o): return True\n    __le__ = __lt__\ndef f(x): return N()"
        ),
        "assert abs(f(1) - 0.5) < 1e-6",
    ),
    "a difference that is nothing": (
        "class N:\n    def __sub__(self, o): return 0.0\n    __rsub__ = __sub__\ndef f(x): return N()",
        "assert abs(f(1) - 0.5) < 1e-6",
    ),
    "a difference that becomes nothing": (
        (
            "class N:\n    def __sub__(self, o): return N()\n    __rsub__ = __sub__\n    def __abs__(self): return"
            " 0.0\n    def __float__(self): return 0.0\ndef f(x): return N()"
        ),
        "assert abs(f(1) - 0.5) < 1e-6",
    ),
    "a difference, rounded": (
        (
            "class N:\n    def __sub__(self, o): return N()\n    def __round__(self, n=0): return 0.0\ndef f(x):"
            " return N()"
        ),
        "assert round(f(1) - 0.5, 6) == 0",
    ),
    "contains everything": (
        (
            "class C:\n    def __contains__(self, x): return True\n    def __iter__(self): return iter([])\ndef f(x):"
            " return C()"
        ),
        "assert 7 in f(1)",
    ),
    "all is true": ("all = lambda x: True\ndef f(x): return 0", "assert all(f(x) == x for x in (1, 2))"),
    "`abs` of the program": ("abs = lambda x: 0\ndef f(x): return 9", "assert abs(f(1) - 0.5) < 1e-6"),
    "`isinstance` of the program": ("isinstance = lambda *a: True\ndef f(x): return 9", "assert isinstance(f(1), str)"),
    "`set` of the program": ("set = lambda x: 0\ndef f(x): return 9", "assert set(f(1)) == set([1])"),
    "`check` of the program": (
        "def check(candidate): pass\ndef f(x): return 9",
        "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)",
    ),
    "exits with success": ("import os\nos._exit(0)", EQUAL_3),
    "exits with success when called": ("import os\ndef add(a, b): os._exit(0)", EQUAL_3),
    "exits with `SystemExit` when called": ("def add(a, b): raise SystemExit(0)", EQUAL_3),
    "exits at the end": ("import atexit, os\natexit.register(os._exit, 0)", EQUAL_3),
    "a trace function that skips assertions": (
        (
            "import sys\ndef trace(frame, event, arg):\n    if frame.f_code.co_filename == 'check.py': frame.f_lineno ="
            " 2\n    return trace\nsys.settrace(trace)\nsys._getframe().f_trace = trace\n"
        ),
        "assert add(1, 2) == 3\nx = 1",
    ),
    "`AssertionError` replaced": (
        "import builtins\nbuiltins.AssertionError = type('Q', (BaseException,), {})\ndef add(a, b): return 0",
        EQUAL_3,
    ),
    "`ModuleType.__dict__` with all names": (
        (
            "import sys\nclass D(dict):\n    def __missing__(self, k): return lambda *a:"
            " 3\nsys.modules['answer'].__class__ = type('M', (type(sys),), {})"
        ),
        EQUAL_3,
    ),
    "the tests' source through `linecache` and frames": (
        FRAME + "import inspect\ndef add(a, b):\n    f = sys._getframe(1)\n    return int(f.f_code.co_consts[-1])",
        "assert add(1, 2) == 3",
    ),
    "the expected value from the caller's constants": (
        (
            "import sys\ndef add(a, b):\n    f = sys._getframe(1)\n    for c in f.f_code.co_consts:\n        if"
            " isinstance(c, int) and c not in (a, b): return c\n"
        ),
        EQUAL_3,
    ),
    "the caller's local names": (
        "import sys\ndef f(x): return sys._getframe(1).f_locals.get('expected')",
        "def run():\n    expected = 42\n    assert f(1) == expected\nrun()",
    ),
    "`unittest.mock.ANY`": ("from unittest.mock import ANY\ndef f(x): return ANY", "assert f(1) == 42"),
    "its own answer to the tests' process": (
        (
            "import os\ndef add(a, b):\n    for fd in range(3, 30):\n        try: os.write(fd, (14).to_bytes(8,"
            " 'little') + b'[\"ok\",true,[]]')\n        except OSError: pass\n"
        ),
        EQUAL_3,
    ),
    "no message at all": (
        (
            "import os\ndef add(a, b):\n    for fd in range(3, 30):\n        try: os.write(fd, b'x' * 100)\n       "
            " except OSError: pass\n    return 3"
        ),
        EQUAL_3,
    ),
    "the status pipe closed, and a process that stays": (
        "import os\ndef add(a, b):\n    os.closerange(3, 60)\n    while True: pass",
        EQUAL_3,
    ),
    "a class of the tests' process, by its name": (
        "import sys\ndef f(x): return sys.modules['unittest.mock'].ANY if 'unittest.mock' in sys.modules else type(x)",
        "assert f(1) == 2",
    ),
    "a value that hides in an exception": (
        ANY + "def f(x):\n    e = ValueError()\n    e.args = (Any(),)\n    raise e",
        "try:\n    f(1)\nexcept ValueError as e:\n    assert e.args == (5,)",
    ),
    "a hash that is always the same": (
        ANY.replace("object.__hash__", "lambda self: hash(3)") + "def f(x): return {Any()}",
        "assert f(1) == {3}",
    ),
}
"""By what is tried, a program, and tests that no honest program without an answer would pass."""

IS_PIPE = (
    "import os, stat\ndef _is_pipe(fd):\n    try: return stat.S_ISFIFO(os.fstat(fd).st_mode)\n    except OSError:"
    " return False\n"
)
