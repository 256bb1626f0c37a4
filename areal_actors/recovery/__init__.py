"""The log of a run: which run is resumed, its recovery after damage, snapshots and trimming."""
