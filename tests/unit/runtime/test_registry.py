"""Importing plug-ins, also after one of them has failed."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from runtime import registry
from runtime.errors import ConfigError
from runtime.registry import Registry, import_plugins
from runtime.schema import Schema, further_field

NAMES = ("broken_parts", "good_parts", "helping_parts")
ADD = """
from runtime.registry import Registry
(WIDGETS,) = Registry.all
WIDGETS.add({!r}, WIDGETS.base)
"""


class WidgetConfig(Schema):
    """The settings of a widget."""


@pytest.fixture
def widgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Return a registry, the only one, while plug-ins are looked for in `tmp_path`."""
    for name in ("PLUGINS", "PLUGIN_PARTS"):
        monkeypatch.setattr(registry, name, [])
    monkeypatch.setattr(Registry, "all", [])
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("widget", WidgetConfig)
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def rebuilt(widgets: Registry, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the widgets at each rebuild of the schemas."""
    found: list[list[str]] = []
    monkeypatch.setattr(registry, "rebuild_schemas", lambda: found.append([*widgets]))
    return found


def write(path: Path, content: str) -> None:
    path.write_text(content)
    importlib.invalidate_caches()


def test_a_mended_plugin_can_be_imported(
    widgets: Registry, rebuilt: list[list[str]], tmp_path: Path
) -> None:
    mended = f"import helping_parts\n{ADD.format('own')}"
    write(tmp_path / "helping_parts.py", ADD.format("helper"))
    write(tmp_path / "broken_parts.py", f"{mended}1 / 0\n")
    with pytest.raises(ConfigError, match=r"plugins=\[broken_parts\]: ZeroDivisionError"):
        import_plugins(["broken_parts"])
    assert [*widgets] == ["helper"]  # Python does not import this module again.
    write(tmp_path / "broken_parts.py", mended)
    import_plugins(["broken_parts"])
    assert [name for _, name in registry.PLUGIN_PARTS] == ["helper", "own"]
    assert rebuilt[-1] == ["helper", "own"]


def test_a_plugin_that_a_schema_refuses_leaves_nothing_behind(
    widgets: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Taking(Schema):
        @classmethod
        def further_fields(cls) -> dict[str, FieldInfo]:
            return {name: further_field(int, 0) for name in widgets}

    class Refusing(Taking):
        taken: int = 0

    monkeypatch.setattr(registry, "_subclasses", lambda _: [Taking, Refusing])
    write(tmp_path / "helping_parts.py", ADD.format("helper"))
    write(tmp_path / "broken_parts.py", f"import helping_parts\n{ADD.format('taken')}")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"plugins=\[broken_parts\]: .* has taken already"):
            import_plugins(["broken_parts"])
        assert ([*widgets], registry.PLUGINS, registry.PLUGIN_PARTS) == ([], [], [])
        assert Taking.model_fields == {}
    write(tmp_path / "broken_parts.py", f"import helping_parts\n{ADD.format('own')}")
    import_plugins(["broken_parts"])
    assert ([*widgets], registry.PLUGINS) == (["helper", "own"], ["broken_parts"])
    assert [*Refusing.model_fields] == ["taken", "helper", "own"]


def test_a_plugin_before_a_misspelt_one_is_in_use(
    widgets: Registry, rebuilt: list[list[str]], tmp_path: Path
) -> None:
    write(tmp_path / "good_parts.py", ADD.format("good"))
    with pytest.raises(ConfigError, match=r"plugins=\[god_parts\]: ModuleNotFoundError"):
        import_plugins(["good_parts", "god_parts"])
    import_plugins(["good_parts"])
    assert [name for _, name in registry.PLUGIN_PARTS] == ["good"]
    assert rebuilt == [["good"]]
