"""The servers for the tests of the pages."""

from ..serve.conftest import mini_lm, served, site, store, toy_lm

__all__ = ["mini_lm", "served", "site", "store", "toy_lm"]
