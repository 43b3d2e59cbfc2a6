"""Ray's start and end, and who else is there: clusters, processes, folders."""
