"""Parsing in threads."""

import ast
import subprocess
import sys

from oddlm.syntax import parse

# A collection that lets another thread in is what a finalizer does now and then; here every one
# does.
THREADS = """
import ast, gc, time
from concurrent.futures import ThreadPoolExecutor
from oddlm.syntax import parse
gc.callbacks.append(lambda *_: time.sleep(0))
gc.set_threshold(50)
code = "assert f(*([14, 8, 3],)) == [14, 8, 3, 14, 8, 3]\\n" * 60
def read(_):
    for _ in range(10):
        assert len(parse(code).body) == 60
with ThreadPoolExecutor(4) as pool:
    list(pool.map(read, range(8)))
"""


def test_threads_may_parse():
    ran = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_same_tree():
    assert ast.dump(parse("x = [1]\n")) == ast.dump(ast.parse("x = [1]\n"))
