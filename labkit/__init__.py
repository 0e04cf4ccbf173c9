"""Support code for the labs: measuring, launching, checking answers and plotting."""
