"""A wheel holds every module, and the configuration that they compose."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
NOT_SHIPPED = ("tests", "build")


def test_every_module_is_in_the_wheel() -> None:
    folders = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for path in ROOT.rglob("*.py")
        if not any(
            part.startswith(".") or part in NOT_SHIPPED for part in path.parts[len(ROOT.parts) :]
        )
    }
    assert folders - {"."} == set(SETUP["packages"]) - {"config"}
    assert {path.stem for path in ROOT.glob("*.py")} == set(SETUP["py-modules"])


def test_every_configuration_is_in_the_wheel() -> None:
    folder = ROOT / "config"
    shipped = {path for pattern in SETUP["package-data"]["config"] for path in folder.glob(pattern)}
    assert shipped == {path for path in folder.rglob("*") if path.is_file()}
