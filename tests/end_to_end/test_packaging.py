"""A wheel contains every module and the configuration."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
NOT_SHIPPED = ("tests", "build", "examples")


def test_every_module_and_configuration_is_in_the_wheel() -> None:
    folders = {path.parent.relative_to(ROOT) for path in ROOT.rglob("*.py")}
    shipped = {f for f in folders if not any(p[0] == "." or p in NOT_SHIPPED for p in f.parts)}
    packages = {".".join(folder.parts) for folder in shipped if folder.parts}
    assert packages == set(SETUP["packages"]) - {"config", "zoo"}
    assert {path.stem for path in ROOT.glob("*.py")} == set(SETUP["py-modules"])
    for name in ("config", "zoo"):
        patterns, folder = SETUP["package-data"][name], ROOT / name
        found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
        assert found == {path for path in folder.rglob("*") if path.is_file()}
    apps = ROOT / "apps"
    found = {path for pattern in SETUP["package-data"]["apps"] for path in apps.glob(pattern)}
    code = {path for path in apps.rglob("*.py*") if path.is_file()}
    assert found == {path for path in apps.rglob("*") if path.is_file()} - code
