from functools import partial

import pytest

from oddlm.registry import Registry


def make() -> Registry:
    registry = Registry("shape")

    @registry.register
    def square(x, *, side=1.0):
        """Four sides."""
        return x * side

    square.corners = 4
    return registry


def test_build_binds_options_and_keeps_marks():
    registry = make()
    assert registry.build("square")(3) == 3
    bound = registry.build({"name": "square", "side": 2.0})
    assert bound(3) == 6
    assert bound.corners == 4
    assert registry.build(abs) is abs
    assert registry.options("square") == {"side": 1.0}
    assert registry.build("math.sqrt")(4) == 2


def test_a_partial_keeps_what_was_declared():
    registry = make()
    bound = registry.build(partial(registry.find("square"), side=3.0))
    assert bound(2) == 6
    assert bound.corners == 4


def test_a_name_is_taken_once():
    registry = make()

    def square(x):
        return x

    with pytest.raises(ValueError, match="shape 'square' is registered already"):
        registry.register(square)
