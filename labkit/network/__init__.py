"""A network in a box: nodes in network namespaces of their own, joined by wires of the rate that is asked for."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.network.network import Network, NoNetwork, Traffic, obstacle, traffic

__all__ = ["Network", "NoNetwork", "Traffic", "obstacle", "traffic"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"network": ["Network", "NoNetwork", "Traffic", "obstacle", "traffic"]}
)
