"""The experiment of a study: found, or made when the first thing is written into it.

So a command that is refused leaves no empty study behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from dcray.track import runs
from dcray.track.connect import Connection
from dcray.track.points import FORMAT


class Experiment:
    """One study's experiment; its id is asked for once."""

    def __init__(self, connection: Connection, study: str) -> None:
        self.connection, self.study = connection, study
        self._id: str | None = None

    def find(self) -> str | None:
        """Its id, None where it is not there; refuses a deleted one and a newer dcray's."""
        if self._id is None:
            found = self.connection.client.get_experiment_by_name(self.study)
            if found is not None:
                runs.check_format(self.study, found)
                self._id = str(found.experiment_id)
        return self._id

    def make(self, tags: Mapping[str, str] | None = None) -> str:
        """Its id; made with `tags` where it is not there."""
        known = self.find()
        if known is not None:
            return known
        connection = self.connection
        ours = not connection.uri.startswith("http")  # a server keeps artifacts where it was told
        place = (connection.directory / "artifacts" / self.study).as_uri() if ours else None
        marks = {"dcray.format": str(FORMAT), **(tags or {})}
        try:
            self._id = str(connection.client.create_experiment(self.study, place, marks))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
        made = self.find()  # another host may have been first
        assert made is not None, self.study
        return made
