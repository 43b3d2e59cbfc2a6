"""The experiment of a study: found, or made when the first thing is written into it.

So a command that is refused leaves no empty study behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from dcray.track import runs
from dcray.track.mlflow.connection import Connection
from dcray.track.points import FORMAT

NOTE = """\
A study of **dcray**. Each parent run is a cell (size, unique tokens, recipe); each run below it is
a result of that cell. Choose "Model training" at the top left; Columns adds `val_loss` (nats per
token), by which you sort.

The filter `tags.is_winner = "true"` leaves the winner of each cell: select two and Compare, or
chart `val_loss` against the parameter `num_epochs`. The latest analysis, with its page, is among
the artifacts of the run "analysis"."""


class Experiment:
    """One study's experiment; its id is asked for once."""

    def __init__(self, connection: Connection, study: str) -> None:
        self.connection, self.study = connection, study
        self._id: str | None = None

    def find(self) -> str | None:
        """Find its id, None if it does not exist; refuse a deleted one and a newer dcray's."""
        if self._id is None:
            found = self.connection.client.get_experiment_by_name(self.study)
            if found is not None:
                runs.check_format(self.study, found)
                self._id = str(found.experiment_id)
        return self._id

    def make(self, tags: Mapping[str, str] | None = None) -> str:
        """Return its id; make the experiment with `tags` if it does not exist."""
        known = self.find()
        if known is not None:
            return known
        connection = self.connection
        ours = not connection.uri.startswith("http")  # a server keeps artifacts where it was told
        place = (connection.directory / "artifacts" / self.study).as_uri() if ours else None
        marks = {"dcray.format": str(FORMAT), "mlflow.note.content": NOTE, **(tags or {})}
        try:
            self._id = str(connection.client.create_experiment(self.study, place, marks))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
        made = self.find()  # another host may have been first
        assert made is not None, self.study
        return made
