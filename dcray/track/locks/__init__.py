"""Locks of the record: leases of cells, owners, heartbeats, the one corpus of a study."""
