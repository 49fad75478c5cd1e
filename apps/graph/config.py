"""Settings of TRM's recursion on graphs."""

from typing import Literal

from apps.nca.config import AnyCanvasConfig
from models.config import ARCHITECTURES, Expansion
from runtime.registry import imported
from runtime.schema import NumLayers, Size, StrictBool


class GraphConfig(AnyCanvasConfig):
    """TRM's recursion on the board of a graph: row and column n belong to node n. It treats all
    nodes alike, so it does not have to learn this.

    Nodes that look the same stay the same; if they need different colours,
    `techniques=random_starts` tells them apart.
    """

    name: Literal["graph"] = "graph"
    """TRM on the board of a graph; treats all nodes alike"""

    H_cycles: Size = 2
    """updates of z_H in an ACT step, the last of them with gradients"""
    L_cycles: Size = 3
    """updates of z_L before each update of z_H"""
    L_layers: NumLayers = 1
    """blocks of the network"""
    hidden_size: Size = 64
    """width of the state of a cell (D)"""
    expansion: Expansion = 2.0
    """inner width of SwiGLU / hidden_size, before the factor 2/3 and rounding up to 8"""
    no_ACT_continue: StrictBool = True
    """false: learn q_continue and halt as HRM does"""


ARCHITECTURES.add("graph", GraphConfig, imported("apps.graph.model", "GraphInner"))
