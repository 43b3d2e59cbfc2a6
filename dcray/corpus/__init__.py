"""From the documents of a source to the rows that a run trains on."""
