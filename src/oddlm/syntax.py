"""Python's parser, for use in threads."""

import ast
from threading import Lock

_one_at_a_time = Lock()


def parse(code: str, name: str = "<program>") -> ast.Module:
    """Call `ast.parse` under a lock.

    CPython 3.11 counts the depth of the tree for all threads together, and raises SystemError if a
    garbage collection lets another thread in (python/cpython#106905).
    """
    with _one_at_a_time:
        return ast.parse(code, name)
