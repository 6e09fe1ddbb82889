"""The servers that the pages are tested on."""

from ..serve.conftest import mini_lm, served, site, store, toy_lm

__all__ = ["mini_lm", "served", "site", "store", "toy_lm"]
