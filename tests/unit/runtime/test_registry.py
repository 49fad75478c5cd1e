"""Parts by name: their order, and settings that take a name."""

from typing import Annotated

import pytest
from pydantic import ValidationError

from runtime.registry import NameOf, Registry
from runtime.schema import Schema


class Part(Schema):
    """It has no settings."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(Registry, "all", [])
    return Registry("part", Part)


def test_a_setting_that_names_a_part_knows_those_registered_later(registry: Registry) -> None:
    class Settings(Schema):
        chosen: Annotated[str, NameOf(registry)] = "none"

    with pytest.raises(ValidationError, match="Input should be 'none'"):
        Settings(chosen="near")
    registry.add("near", Part, text="what is close")
    registry.add("far", Part, text="what is not")
    Settings.model_rebuild(force=True)
    assert Settings(chosen="near").chosen == "near"
    with pytest.raises(ValidationError, match="Input should be 'none', 'near' or 'far'"):
        Settings(chosen="fat")
