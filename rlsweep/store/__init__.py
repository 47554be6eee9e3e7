"""Run folders on disk: the interface between launcher, trainer, tracker and report. Standard library only."""
