"""A testbed on one machine: nodes in separate network namespaces, connected by wires of a given rate."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.testbed.testbed import Testbed, Traffic, obstacle, traffic

__all__ = ["Testbed", "Traffic", "obstacle", "traffic"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"testbed": ["Testbed", "Traffic", "obstacle", "traffic"]}
)
