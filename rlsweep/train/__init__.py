"""One run: `python -m rlsweep.train RUN_DIR`."""
