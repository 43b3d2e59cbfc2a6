"""dcray: find out what your pretraining data is worth."""

__version__ = "0.1.0"
