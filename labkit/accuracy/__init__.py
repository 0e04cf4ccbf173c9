"""The accuracy of a testbed on this machine: what its wires and collectives take, beside what they should."""
