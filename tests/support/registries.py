"""Registries in tests that register members of their own."""

from typing import Any

import pytest

from nmtkit.core.registry import Registry


def keep_members(monkeypatch: pytest.MonkeyPatch, *registries: Registry[Any]) -> None:
    """Makes registries forget after the test what it registers.

    All members are imported before: a module registers its members only the first time.
    """
    for registry in registries:
        for name in registry:
            registry.get(name)
        monkeypatch.setattr(registry, "_members", dict(registry._members))
