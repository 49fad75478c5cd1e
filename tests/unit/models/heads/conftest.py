"""Examples with every field, and what heads are compared with."""

import pytest

from models.heads.base import Examples, Targets
from tests.unit.models.heads.auxiliary_heads import make_examples, make_targets


@pytest.fixture
def examples() -> Examples:
    return make_examples()


@pytest.fixture
def targets(examples: Examples) -> Targets:
    return make_targets(examples)
