"""The examples in the docstrings of the pure layers are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import assay.core
import assay.functional

MODULES = [
    info.name
    for package in (assay.core, assay.functional)
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0
