"""A testbed on one machine: nodes in separate network namespaces, connected by wires of a given rate."""

from labkit.testbed.testbed import Testbed, obstacle, traffic

__all__ = ["Testbed", "obstacle", "traffic"]
