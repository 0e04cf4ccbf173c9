"""A network in a box: nodes in network namespaces of their own, joined by wires of the rate that is asked for."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.network.namespaces import NoNetwork
    from labkit.network.network import Network, Traffic, obstacle, traffic

__all__ = ["Network", "NoNetwork", "Traffic", "obstacle", "traffic"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"namespaces": ["NoNetwork"], "network": ["Network", "Traffic", "obstacle", "traffic"]}
)
