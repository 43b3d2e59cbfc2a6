"""jobs/submit.py as a module."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_found = importlib.util.spec_from_file_location("submit", ROOT / "jobs" / "submit.py")
submit = importlib.util.module_from_spec(_found)
_found.loader.exec_module(submit)
