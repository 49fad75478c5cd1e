"""A token head of clusters."""

import pytest

from models.heads.hierarchical.model import Hierarchical
from tests.unit.models.heads.token_heads import D, V


@pytest.mark.parametrize("count", [0, 12])
def test_clusters_that_cannot_be_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_clusters is {count}, expected 1 to 11"):
        Hierarchical(D, V, num_clusters=count)
