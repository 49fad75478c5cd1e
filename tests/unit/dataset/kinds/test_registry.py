"""The registry of kinds of puzzles."""

from typing import Any

import pytest

from dataset.kinds import KINDS, KindConfig
from dataset.kinds.base import Kind, kind_named, kinds_with
from runtime.errors import ConfigError
from runtime.registry import Part


def named(name: str) -> type[Kind]:
    return type("OwnKind", (Kind,), {"name": name})


def register(name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS._parts, name, Part(KindConfig, lambda: kind, ""))


def test_the_name_of_a_kind_in_lower_case_is_the_registered_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = named("Latin")()
    register("latin", kind, monkeypatch)
    assert kind_named("latin") is kind
    assert [KINDS.load(name).key for name in KINDS] == [*KINDS]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("latin", named("Latin squares")()),
        ("latin", Kind()),
        ("Latin", named("Latin")()),
        ("latin", named("Latin")),
    ],
)
def test_what_is_registered_wrongly_is_told_what_to_write(
    name: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(name, kind, monkeypatch)
    message = f"{name!r} is .*Kind.*; register an instance of your class under its name in lower"
    with pytest.raises(ConfigError, match=message):
        kind_named(name)
    with pytest.raises(ConfigError, match=message):
        kinds_with(81, 11)
